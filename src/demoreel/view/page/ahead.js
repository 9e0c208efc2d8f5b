// The episode that is likely to be opened next: what its page needs first is fetched, and its first
// frame decoded, while the pointer or the cursor is on its row.
import { openImages } from "./images.js";
import { getJson } from "./tools.js";

const RESTS = 80; // ms on a row before anything is fetched

let ahead = null;
let timer = 0;

// Fetches at once, or when the pointer or the cursor has stayed for a moment.
export function prepare(id, number, info, { atOnce = false } = {}) {
  clearTimeout(timer);
  if (ahead?.base === `/api/d/${id}/e/${number}`) return;
  if (atOnce) begin(id, number, info);
  else timer = setTimeout(() => begin(id, number, info), RESTS);
}

function begin(id, number, info) {
  drop();
  const mine = (ahead = {
    base: `/api/d/${id}/e/${number}`,
    facts: null,
    images: new Map(),
    gone: false,
  });
  mine.facts = getJson(mine.base);
  mine.facts
    .then((facts) =>
      Promise.all(
        Object.entries(facts.cameras).map(async ([camera, way]) => {
          const images = await openImages(
            mine.base,
            camera,
            way,
            facts.length,
            info.features[camera].size,
          );
          if (mine.gone) {
            images.close();
            return;
          }
          mine.images.set(camera, images);
          images.frame(0).catch(() => {}); // the page asks again, and is told
        }),
      ),
    )
    .catch(() => {});
}

export function drop() {
  clearTimeout(timer);
  if (!ahead) return;
  ahead.gone = true;
  for (const images of ahead.images.values()) images.close();
  ahead = null;
}

// Gives what was fetched of an episode to its page, which closes the images; null if it was not.
export function taken(id, number) {
  const found = ahead?.base === `/api/d/${id}/e/${number}` ? ahead : null;
  if (!found) {
    drop();
    return null;
  }
  clearTimeout(timer);
  ahead = null;
  return found;
}
