"""A packet index as bytes, to be kept beside the video it describes.

The bytes are an Arrow IPC stream, so that other programs can read them too: one row per packet, in
decoding order, and the codec in the schema's metadata.

============  ========  ===========================================================================
``offset``    int64     where the packet's bytes lie in the video
``size``      int32     how many they are
``frame``     int32     the frame that it becomes, in presentation order; -1 if it is never shown
``back``      int32     packets to go back to where decoding must begin; 0 for a keyframe, and one
                        more than there are where that lies before the first packet
``seconds``   float64   when the frame is shown, on the video's own clock; 0 if it never is
============  ========  ===========================================================================

The metadata hold ``demoreel.packets`` (the version of this description), ``decoder`` (FFmpeg's name
of a software decoder), ``width``, ``height``, ``color_range``, ``colorspace`` (as FFmpeg numbers
them), ``video_bytes`` (the video's size) and, where the codec has a header, ``extradata``.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from demoreel.errors import VideoError
from demoreel.media.video import Codec, PacketIndex
from demoreel.storage.arrow import as_numpy

PACKETS_COLUMN = "demoreel_packets"
"""The column of a table of videos that holds these bytes."""

_VERSION = b"1"
_SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("size", pa.int32()),
        ("frame", pa.int32()),
        ("back", pa.int32()),
        ("seconds", pa.float64()),
    ]
)


def encode_packets(index: PacketIndex, *, video_bytes: int) -> bytes:
    """Return a packet index as bytes; about 10 a packet.

    Args:
        index: The index.
        video_bytes: Size of the video that it describes; the reader checks it.
    """
    codec = index.codec
    metadata = {
        b"demoreel.packets": _VERSION,
        b"decoder": codec.name.encode(),
        b"width": b"%d" % codec.width,
        b"height": b"%d" % codec.height,
        b"color_range": b"%d" % codec.color_range,
        b"colorspace": b"%d" % codec.colorspace,
        b"video_bytes": b"%d" % video_bytes,
    }
    if codec.extradata is not None:
        metadata[b"extradata"] = codec.extradata
    seconds = np.zeros(len(index.offset))
    seconds[index.packet_of] = index.seconds
    back = np.arange(len(index.offset)) - index.start_of
    columns = (index.offset, index.size, index.frame_of, back, seconds)
    arrays = [pa.array(c, field.type) for c, field in zip(columns, _SCHEMA, strict=True)]
    schema = _SCHEMA.with_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as out:
        out.write_batch(pa.record_batch(arrays, schema=schema))
    return bytes(sink.getvalue())


def decode_packets(data: bytes, *, video_bytes: int, name: str) -> PacketIndex | None:
    """Return the packet index that ``encode_packets`` made bytes of.

    Args:
        data: The bytes.
        video_bytes: Size of the video.
        name: The video's name, for errors.

    Returns:
        The index; None where the bytes are of a later description than this, or of another video,
        so that the video's own table must be read.
    """
    try:
        with pa.ipc.open_stream(data) as stream:
            table = stream.read_all()
        said = table.schema.metadata or {}
        if said.get(b"demoreel.packets") != _VERSION or int(said[b"video_bytes"]) != video_bytes:
            return None
        codec = Codec(
            name=said[b"decoder"].decode(),
            extradata=said.get(b"extradata"),
            width=int(said[b"width"]),
            height=int(said[b"height"]),
            color_range=int(said[b"color_range"]),
            colorspace=int(said[b"colorspace"]),
        )
        codec.require_listed(name)
        return _index(codec, table, video_bytes)
    except VideoError:
        raise
    except (pa.ArrowException, OSError, KeyError, ValueError, IndexError) as error:
        raise VideoError(
            f"The packet index stored beside the video is damaged ({error}).",
            hint="restore the table from a copy",
            code="lance-packet-index",
            file=name,
        ) from error


def _index(codec: Codec, table: pa.Table, video_bytes: int) -> PacketIndex:
    offset, size, frame, back = (
        as_numpy(table.column(name)).astype(kind)
        for name, kind in (("offset", "i8"), ("size", "i8"), ("frame", "i4"), ("back", "i4"))
    )
    packets = np.flatnonzero(frame >= 0)
    packet_of = np.full(len(packets), -1, dtype=np.int32)
    packet_of[frame[packets]] = packets
    start_of = np.arange(len(frame), dtype=np.int32) - back
    if (packet_of < 0).any() or (start_of < -1).any() or (back < 0).any():
        raise ValueError("frames or keyframes that do not exist")
    if len(offset) and (int(offset.min()) < 0 or int((offset + size).max()) > video_bytes):
        raise ValueError("packets outside the video")
    return PacketIndex(
        codec=codec,
        offset=offset,
        size=size,
        frame_of=frame,
        start_of=start_of,
        packet_of=packet_of,
        seconds=as_numpy(table.column("seconds"))[packet_of],
    )
