// Where a camera's images come from. All ways have one face: `frame(i)` gives what to draw of the
// episode's frame i, and never of another; `has(i)` says whether that would be at once.
import { get, getBytes } from "./tools.js";

const KEPT_BYTES = 160e6; // of decoded images, for each camera
const STEP = 160, // pixels between the widths in which the server sends images
  WIDEST = 4000;
const HEADER = 12; // whether decoding may begin here, the frame, the bytes: see view/packets.py

// Keeps what was decoded; the farthest from where one looks goes first.
class Kept {
  constructor(bytesOfOne) {
    this.images = new Map();
    this.most = Math.max(8, Math.floor(KEPT_BYTES / bytesOfOne));
    this.near = 0;
  }
  put(frame, image) {
    this.images.get(frame)?.close?.();
    this.images.set(frame, image);
    if (this.images.size <= this.most) return;
    let worst = -1,
      distance = -1;
    for (const key of this.images.keys()) {
      // What lies ahead is wanted next: it counts half.
      const away = key >= this.near ? (key - this.near) / 2 : this.near - key;
      if (away > distance) [worst, distance] = [key, away];
    }
    this.images.get(worst).close?.();
    this.images.delete(worst);
  }
  clear() {
    for (const image of this.images.values()) image.close?.();
    this.images.clear();
  }
}

export class PacketImages {
  // Decodes in the browser, by WebCodecs. A packet's time stamp is the frame's ordinal, so what
  // comes out is known by it.
  constructor(base, camera, facts, length) {
    Object.assign(this, { base, camera, facts, length });
    this.kept = new Kept(facts.width * facts.height * 1.5);
    this.block = Math.max(64, facts.gop);
    this.blocks = new Map();
    this.turn = Promise.resolve();
    this.decoding = new Map(); // frame -> the run that will give it
    this.shown = `WebCodecs ${facts.codec}`;
    this.closed = false;
  }

  static async supports(facts) {
    if (facts.way !== "packets" || typeof VideoDecoder === "undefined") return null;
    const base = {
      codec: facts.codec,
      codedWidth: facts.width,
      codedHeight: facts.height,
      optimizeForLatency: true,
    };
    if (facts.description)
      base.description = Uint8Array.from(facts.description.match(/../g), (pair) =>
        parseInt(pair, 16),
      );
    // Frames of a decoder in hardware are few: it would stop while they are kept.
    for (const hardwareAcceleration of ["prefer-software", "no-preference"]) {
      try {
        const { supported } = await VideoDecoder.isConfigSupported({
          ...base,
          hardwareAcceleration,
        });
        if (supported) return { ...base, hardwareAcceleration };
      } catch {
        /* an unknown codec string */
      }
    }
    return null;
  }

  has(frame) {
    return this.kept.images.has(frame);
  }
  look(frame) {
    this.kept.near = frame;
    return this.kept.images.get(frame);
  }

  // Gives a frame; `ahead` more are decoded with it.
  async frame(frame, ahead = 0, signal) {
    this.kept.near = frame;
    const kept = this.kept.images.get(frame);
    if (kept) return kept;
    const known = this.decoding.get(frame);
    if (known) {
      await known;
    } else {
      const last = Math.min(this.length - 1, frame + ahead);
      const run = (this.turn = this.turn
        .catch(() => {})
        .then(() => {
          if (signal?.aborted || this.closed)
            throw new DOMException("not wanted any more", "AbortError");
          return this.has(frame) && last === frame ? undefined : this.run(frame, last);
        }));
      for (let each = frame; each <= last; each++) this.decoding.set(each, run);
      const done = () => {
        for (let each = frame; each <= last; each++)
          if (this.decoding.get(each) === run) this.decoding.delete(each);
      };
      run.then(done, done);
      await run;
    }
    const image = this.kept.images.get(frame);
    if (!image) {
      if (signal?.aborted || this.closed)
        throw new DOMException("not wanted any more", "AbortError");
      throw new Error(`The decoder gave no frame ${frame}.`);
    }
    return image;
  }

  packets(number) {
    if (!this.blocks.has(number)) {
      const from = number * this.block,
        to = Math.min(this.length, from + this.block);
      const loaded = getBytes(
        `${this.base}/packets?camera=${encodeURIComponent(this.camera)}&from=${from}&to=${to}&v=${this.facts.revision}`,
      ).then(parsePackets);
      loaded.catch(() => this.blocks.delete(number));
      this.blocks.set(number, loaded);
      if (this.blocks.size > 6) this.blocks.delete(this.blocks.keys().next().value);
    }
    return this.blocks.get(number);
  }

  async run(first, last) {
    const { first: origin, step } = this.facts;
    for (let number = Math.floor(first / this.block); number * this.block <= last; number++) {
      const packets = await this.packets(number);
      const from = Math.max(first, number * this.block),
        to = Math.min(last, (number + 1) * this.block - 1);
      await this.decode(packets, origin + step * from, origin + step * to);
    }
    if (last + 1 < this.length && last - first > 4)
      this.packets(Math.floor((last + 1) / this.block)).catch(() => {});
  }

  async decode(packets, from, to) {
    const wanted = new Set();
    for (let frame = from; frame <= to; frame += this.facts.step)
      if (!this.kept.images.has((frame - this.facts.first) / this.facts.step)) wanted.add(frame);
    if (!wanted.size) return;
    let start = packets.length,
      stop = 0;
    packets.forEach((packet, place) => {
      if (!wanted.has(packet.frame)) return;
      stop = Math.max(stop, place);
      let key = place;
      while (key > 0 && !packets[key].key) key--;
      // A frame that is shown before its keyframe leans on the one before it, too.
      if (packets[key].frame > packet.frame) {
        key--;
        while (key > 0 && !packets[key].key) key--;
      }
      start = Math.min(start, Math.max(0, key));
    });
    let hidden = -1;
    const decoder = this.open();
    for (let place = start; place <= stop; place++) {
      const packet = packets[place];
      const timestamp = packet.frame >= 0 ? packet.frame : hidden--;
      decoder.decode(
        new EncodedVideoChunk({ type: packet.key ? "key" : "delta", timestamp, data: packet.data }),
      );
      // An unbounded queue would hold a whole long GOP in decoded frames.
      while (decoder.decodeQueueSize > 24)
        await new Promise((resolve) =>
          decoder.addEventListener("dequeue", resolve, { once: true }),
        );
    }
    await decoder.flush();
    if (this.trouble) throw this.trouble;
  }

  open() {
    if (this.decoder && this.decoder.state === "configured") return this.decoder;
    this.trouble = null;
    this.decoder = new VideoDecoder({
      output: (image) => {
        const place = (image.timestamp - this.facts.first) / this.facts.step;
        if (!this.closed && Number.isInteger(place) && place >= 0 && place < this.length)
          this.keep(place, image);
        else image.close();
      },
      error: (error) => {
        this.trouble = error;
      },
    });
    this.decoder.configure(this.config);
    return this.decoder;
  }

  keep(place, image) {
    if (this.config.hardwareAcceleration === "prefer-software") {
      this.kept.put(place, image);
      return;
    }
    const copy = new OffscreenCanvas(image.displayWidth, image.displayHeight);
    copy.getContext("2d").drawImage(image, 0, 0);
    image.close();
    this.kept.put(place, copy.transferToImageBitmap());
  }

  close() {
    this.closed = true;
    this.kept.clear();
    if (this.decoder && this.decoder.state !== "closed") this.decoder.close();
  }
}

function parsePackets(buffer) {
  const view = new DataView(buffer),
    packets = [];
  for (let at = 0; at < buffer.byteLength;) {
    const size = view.getInt32(at + 8, true);
    packets.push({
      key: view.getUint8(at) === 1,
      frame: view.getInt32(at + 4, true),
      data: new Uint8Array(buffer, at + HEADER, size),
    });
    at += HEADER + size;
  }
  return packets;
}

export class ServerImages {
  // Frames that the server decoded: images in tables, codecs that the browser lacks, depth.
  constructor(base, camera, facts, length, size) {
    Object.assign(this, { base, camera, facts, length, size });
    this.isDepth = facts.way === "depth";
    this.kept = new Kept(size[0] * size[1] * (this.isDepth ? 6 : 4));
    this.under = new Map();
    this.shown = "decoded by the server";
    this.width = 0; // of the images that are asked for; 0 is as they are
  }

  // Images come at the size that is shown. Says whether that is another one than before.
  fit(width) {
    const wanted = this.isDepth ? 0 : Math.min(WIDEST, STEP * Math.ceil(width / STEP));
    const before = this.width;
    this.width = wanted < this.size[1] ? wanted : 0;
    if (this.width !== before) this.kept.clear();
    return this.width !== before;
  }
  has(frame) {
    return this.kept.images.has(frame);
  }
  look(frame) {
    this.kept.near = frame;
    return this.kept.images.get(frame);
  }

  async frame(frame, ahead = 0, signal) {
    this.kept.near = frame;
    for (
      let next = frame + 1;
      next <= Math.min(this.length - 1, frame + Math.min(ahead, 4));
      next++
    )
      this.load(next).catch(() => {});
    // Again where another size was asked for meanwhile.
    for (let tries = 0; tries < 3 && !this.has(frame); tries++) await this.load(frame, signal);
    return this.kept.images.get(frame);
  }

  load(frame, signal) {
    if (this.has(frame)) return Promise.resolve();
    if (this.under.has(frame)) return this.under.get(frame);
    const query = `camera=${encodeURIComponent(this.camera)}&i=${frame}&v=${this.facts.revision}${this.width ? `&w=${this.width}` : ""}`;
    const loading = (
      this.isDepth
        ? this.depth(`${this.base}/depth?${query}`, frame, signal)
        : this.image(`${this.base}/frame?${query}`, frame, signal)
    ).finally(() => this.under.delete(frame));
    this.under.set(frame, loading);
    return loading;
  }

  async image(address, frame, signal) {
    const { width } = this;
    const image = await createImageBitmap(await (await get(address, signal)).blob());
    if (width === this.width) this.kept.put(frame, image);
    else image.close(); // another size is shown by now
  }

  async depth(address, frame, signal) {
    const answer = await get(address, signal);
    const [height, width] = answer.headers.get("X-Size").split(",").map(Number);
    const values = new Uint16Array(await answer.arrayBuffer());
    const pixels = new Uint8ClampedArray(4 * width * height);
    let low = 65535,
      high = 0;
    for (const value of values)
      if (value) {
        if (value < low) low = value;
        if (value > high) high = value;
      }
    const scale = high > low ? 255 / (high - low) : 0;
    values.forEach((value, place) => {
      const [red, green, blue] = value ? VIRIDIS[Math.round((value - low) * scale)] : [0, 0, 0];
      pixels.set([red, green, blue, 255], 4 * place);
    });
    const image = await createImageBitmap(new ImageData(pixels, width, height));
    image.millimetres = values;
    this.kept.put(frame, image);
  }

  // Metres under a point of the image, each from 0 to 1; null where nothing was measured.
  metres(frame, x, y) {
    const image = this.kept.images.get(frame);
    if (!image) return null;
    const { width, height, millimetres } = image;
    const value = millimetres[Math.floor(y * height) * width + Math.floor(x * width)];
    return value ? value / 1000 : null;
  }

  close() {
    this.kept.clear();
  }
}

// Anchors of the viridis map (CC0), with straight lines between them.
const ANCHORS = [
  [68, 1, 84],
  [72, 40, 120],
  [62, 74, 137],
  [49, 104, 142],
  [38, 130, 142],
  [31, 158, 137],
  [53, 183, 121],
  [109, 205, 89],
  [180, 222, 44],
  [253, 231, 37],
];
const VIRIDIS = Array.from({ length: 256 }, (_, value) => {
  const at = (value / 255) * (ANCHORS.length - 1),
    low = Math.min(ANCHORS.length - 2, Math.floor(at));
  return ANCHORS[low].map((part, channel) =>
    Math.round(part + (ANCHORS[low + 1][channel] - part) * (at - low)),
  );
});

// How wide a canvas shows its image, in pixels of the screen; the image's size is [height, width].
export const shownWidth = (canvas, [tall, wide]) =>
  Math.min(canvas.clientWidth, (canvas.clientHeight * wide) / tall) *
  (window.devicePixelRatio || 1);

// Puts cameras into as many columns as show them largest; sizes are [height, width].
export function arrange(grid, sizes) {
  const { clientWidth: width, clientHeight: height } = grid;
  let best = 1,
    largest = -1;
  for (let columns = 1; columns <= sizes.length; columns++) {
    const across = width / columns,
      down = height / Math.ceil(sizes.length / columns);
    let area = 0;
    for (const [tall, wide] of sizes)
      area += Math.min(across / wide, down / tall) ** 2 * wide * tall;
    if (area > largest * 1.001) [best, largest] = [columns, area];
  }
  grid.style.gridTemplateColumns = `repeat(${best}, minmax(0, 1fr))`;
  grid.style.gridAutoRows = "minmax(0, 1fr)";
}

export async function openImages(base, camera, facts, length, size) {
  if (facts.way === "error")
    throw Object.assign(new Error(facts.why.message), { report: facts.why });
  const config = await PacketImages.supports(facts);
  if (!config) return new ServerImages(base, camera, facts, length, size);
  const images = new PacketImages(base, camera, facts, length);
  images.config = config;
  return images;
}
