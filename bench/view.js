// What bench/view.py runs in a page; each gives numbers. In parentheses, for the browser to evaluate.
({

  scrub: async ({ steps, only }) => {
    const main = document.getElementById("main").demoreel;
    const last = Number(document.querySelector("input[type=range]").max);
    const times = [], begin = performance.now();
    for (let step = 0; step < steps; step++) {
      const frame = Math.floor(Math.random() * last), before = performance.now();
      await main.seek(frame);
      times.push(performance.now() - before);
      for (const canvas of document.querySelectorAll("canvas[data-camera]"))
        if (Number(canvas.dataset.frame) !== frame) throw new Error(`wrong frame ${frame}`);
    }
    times.sort((a, b) => a - b);
    const seconds = (performance.now() - begin) / 1000;
    return { per_second: steps / seconds, median_ms: times[steps >> 1],
         p95_ms: times[Math.floor(steps * 0.95)] };
  },

  // What the browser can do at all: packets that are there already, one decoder, one canvas.
  floor: async ({ base, camera, steps }) => {
    const facts = (await (await fetch(base)).json()), { codec, description, width, height, first, gop } = facts.cameras[camera];
    const buffer = await (await fetch(`${base}/packets?camera=${encodeURIComponent(camera)}&from=0&to=${Math.min(1000, facts.length)}`)).arrayBuffer();
    const view = new DataView(buffer), packets = [];
    for (let at = 0; at < buffer.byteLength;) {
      const size = view.getInt32(at + 8, true);
      packets.push({ key: view.getUint8(at) === 1, frame: view.getInt32(at + 4, true) - first, data: new Uint8Array(buffer, at + 12, size) });
      at += 12 + size;
    }
    const context = new OffscreenCanvas(width, height).getContext("2d", { alpha: false });
    let wanted = -1, shown = -1;
    const decoder = new VideoDecoder({ error: (error) => { throw error; }, output: (image) => {
      if (image.timestamp === wanted) { context.drawImage(image, 0, 0); shown = wanted; }
      image.close();
    } });
    const config = { codec, codedWidth: width, codedHeight: height, hardwareAcceleration: "prefer-software", optimizeForLatency: true };
    if (description) config.description = Uint8Array.from(description.match(/../g), (pair) => parseInt(pair, 16));
    decoder.configure(config);
    const times = [], begin = performance.now();
    for (let step = 0; step < steps; step++) {
      const before = performance.now();
      wanted = Math.floor(Math.random() * packets.length);
      let place = packets.findIndex((packet) => packet.frame === wanted), from = place;
      while (!packets[from].key) from--;
      for (; from <= place; from++) decoder.decode(new EncodedVideoChunk({ type: packets[from].key ? "key" : "delta", timestamp: packets[from].frame, data: packets[from].data }));
      await decoder.flush();
      if (shown !== wanted) throw new Error(`wrong frame ${shown}`);
      times.push(performance.now() - before);
    }
    times.sort((a, b) => a - b);
    const seconds = (performance.now() - begin) / 1000;
    return { per_second: steps / seconds, median_ms: times[steps >> 1], p95_ms: times[Math.floor(steps * 0.95)] };
  },

  play: async ({ seconds, fps }) => {
    const main = document.getElementById("main").demoreel;
    await main.seek(0);
    const begin = performance.now();
    main.play();
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
    main.pause();
    const expected = Math.floor((performance.now() - begin) / 1000 * fps);
    return { shown: main.state.shown, expected, dropped: main.dropped() };
  },

  back: async (steps) => {
    const main = document.getElementById("main").demoreel, times = [];
    await main.seek(240);
    for (let step = 0; step < steps; step++) {
      const before = performance.now();
      await main.step(-1);
      times.push(performance.now() - before);
    }
    const [first, ...rest] = times;
    rest.sort((a, b) => a - b);
    return { first_ms: first, median_ms: rest[rest.length >> 1], worst_ms: rest.at(-1) };
  },

  // A wheel event in each frame of the screen: zoom in, then pan, then zoom out.
  charts: async (count) => {
    await document.getElementById("main").demoreel.ready;
    const over = document.querySelector(".u-over");
    const wheel = (options) => over.dispatchEvent(new WheelEvent("wheel", { bubbles: true, cancelable: true, clientX: 500, ...options }));
    const next = () => new Promise(requestAnimationFrame);
    const runs = { zoom: (n) => wheel({ ctrlKey: true, deltaY: n < count / 2 ? -20 : 20 }), pan: (n) => wheel({ shiftKey: true, deltaY: n < count / 2 ? 40 : -40 }) };
    wheel({ ctrlKey: true, deltaY: -120 });
    const found = {};
    for (const [name, run] of Object.entries(runs)) {
      await next();
      const begin = performance.now();
      let busy = 0;
      for (let n = 0; n < count; n++) { const before = performance.now(); run(n); await null; busy += performance.now() - before; await next(); }
      found[name] = { per_second: count / ((performance.now() - begin) / 1000), script_ms: busy / count };
    }
    const idle = performance.now();
    for (let n = 0; n < count; n++) await next();
    found.empty_frames_per_second = count / ((performance.now() - idle) / 1000);
    return found;
  },
})
