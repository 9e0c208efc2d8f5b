"""Cards: what is ours is brought up to date, and what is not is not touched."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from demoreel.errors import ArgumentError
from demoreel.hub.card import BEGIN, END, CardFacts, merged_card, without_block

FACTS = CardFacts(
    title="my_task",
    layout="v3.0",
    info={"codebase_version": "v3.0", "fps": 30},
    episodes=2,
    frames=9,
    seconds=0.3,
    sheet="demoreel/first_frames.jpg",
    cameras=("observation.images.top",),
)


def facts(**changes):
    return CardFacts(**{**{name: getattr(FACTS, name) for name in FACTS.__slots__}, **changes})


def header(card):
    return yaml.safe_load(card.split("---\n")[1])


def test_a_card_from_nothing():
    card = merged_card(None, facts(tags=["so101"]))
    assert header(card) == {
        "license": "apache-2.0",
        "tags": ["LeRobot", "so101"],
        "task_categories": ["robotics"],
        "configs": [{"config_name": "default", "data_files": "data/*/*.parquet"}],
    }
    assert "# my_task" in card
    assert BEGIN in card
    assert card.endswith(END + "\n")
    assert '"codebase_version": "v3.0"' in card
    assert "![First frames](demoreel/first_frames.jpg)" in card
    assert "2 episodes, 9 frames, 0.3 seconds" in card
    assert "`observation.images.top`" in card
    assert merged_card(card, facts(tags=["so101"])) == card


BY_HAND = """---
# what we found
pretty_name: "Ours"   # as on the poster
license: mit
tags:
- robots
- LeRobot
size_categories: [n<1K]
task_categories:
  - other
---
# Title

Text by hand, with a <!-- comment -->.

| a | b |
|---|---|

"""


def test_a_card_by_hand_keeps_its_text_and_its_keys():
    card = merged_card(BY_HAND, FACTS)
    assert header(card) == {
        "pretty_name": "Ours",
        "license": "mit",
        "tags": ["robots", "LeRobot"],
        "size_categories": ["n<1K"],
        "task_categories": ["other", "robotics"],
        "configs": [{"config_name": "default", "data_files": "data/*/*.parquet"}],
    }
    assert '# what we found\npretty_name: "Ours"   # as on the poster\nlicense: mit\n' in card
    body = BY_HAND.split("---\n", 2)[2].strip()
    assert body in card
    moved = card.replace(END, f"{END}\n\nMore by hand.")
    again = merged_card(moved, facts(episodes=3, license="cc-by-4.0"))
    assert body in again
    assert again.rstrip().endswith("More by hand.")
    assert "3 episodes" in again
    assert "2 episodes" not in again
    assert again.count(BEGIN) == again.count(END) == 1
    assert header(again)["license"] == "cc-by-4.0"
    assert header(again)["pretty_name"] == "Ours"


def test_the_block_stays_where_it_was_put():
    text = f"# A\n\n{BEGIN}\nold\n{END}\n\n# B\n"
    card = merged_card(text, FACTS)
    assert card.index("# A") < card.index(BEGIN) < card.index(END) < card.index("# B")
    assert "old" not in card
    assert without_block(text) == "# A\n\n\n\n# B"


@pytest.mark.parametrize("stray", [f"{BEGIN}\n# A\n", f"# A\n{END}\n", f"{END}\n# A\n{BEGIN}\n"])
def test_half_a_block_is_no_block(stray):
    card = merged_card(stray, FACTS)
    assert card.count(BEGIN) == card.count(END) == 1
    assert "# A" in without_block(card)
    assert merged_card(card, FACTS) == card


def test_own_configs_stay():
    own = "---\nconfigs:\n- config_name: mine\n  data_files: x.csv\n---\n# A\n"
    assert header(merged_card(own, FACTS))["configs"] == [
        {"config_name": "mine", "data_files": "x.csv"}
    ]
    lance = facts(layout="lance-video")
    assert header(merged_card(own, lance))["configs"][0]["config_name"] == "mine"
    assert "configs" not in header(merged_card(merged_card(None, FACTS), lance))


@pytest.mark.parametrize(
    "text",
    [
        "---\n{license: mit, tags: [a]}\n---\nx\n",
        "---\r\nlicense: mit\r\ntags: a\r\n---\r\nx\r\n",
        "\ufeff---\nlicense: mit\ntags: a\n---\nx\n",
        "---\n'license': mit\n\"tags\": [a]\n---\nx\n",
        "---\nlicense: mit\ntags: a\n---",
    ],
)
def test_headers_of_unusual_form(text):
    card = merged_card(text, FACTS)
    assert header(card)["license"] == "mit"
    assert header(card)["tags"] == ["a", "LeRobot"]
    assert merged_card(card, FACTS) == card


@pytest.mark.parametrize("text", ["---\na: [\n---\n", "---\n- a\n---\n", "---\na: b: c\n---\n"])
def test_a_broken_header_is_an_error(text):
    with pytest.raises(ArgumentError, match="YAML"):
        merged_card(text, FACTS)


LAUGHS = "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))])


@pytest.mark.parametrize("head", [LAUGHS, "a: " + "[" * 5000, "a: " + "x" * 300_000])
def test_a_header_that_asks_for_too_much_is_an_error(head):
    with pytest.raises(ArgumentError, match="YAML"):
        merged_card(f"---\n{head}\n---\n# x\n", FACTS)


def test_what_else_is_said():
    card = merged_card(
        None,
        facts(texts={"url": "https://x.org", "citation": "@a{b}", "language": "en", "paper": None}),
    )
    assert "Homepage: https://x.org" in card
    assert "```bibtex\n@a{b}\n```" in card
    assert header(card)["language"] == "en"
    assert "Paper" not in card


def test_a_strangers_names_do_not_break_out():
    evil = f"a`{END}```\n````\n<script>"
    card = merged_card(
        None, facts(info={"robot_type": evil}, cameras=(evil,), texts={"citation": evil})
    )
    assert card.count(BEGIN) == card.count(END) == 1
    assert "<script>" not in merged_card(card, facts(info={}))


@given(st.text(), st.text())
def test_any_text_stays(before, after):
    if BEGIN in before + after or END in before + after or before.lstrip("\ufeff")[:3] == "---":
        return
    card = merged_card(f"{before}\n{BEGIN}\n{END}\n{after}", FACTS)
    body = card.split("---\n", 2)[2]
    assert body.startswith(before.removeprefix("\ufeff"))
    assert body.endswith(after)
    assert merged_card(card, FACTS) == card
