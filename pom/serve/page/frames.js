// Frames of a stream: read as they come, drawn when their time has come.
import { call } from "./api.js";
import { sleep } from "./dom.js";

const HEAD = 20;
const LARGEST = 1 << 26;  // a longer frame means that we have lost our place

// Cuts pieces of bytes, which end anywhere, into frames: u32 length, u32 index, u64 time in µs, u32 number of the
// prompt, all little-endian, then the PNG.
export class Frames {
  #rest = new Uint8Array(0);

  *push(piece) {
    const bytes = new Uint8Array(this.#rest.length + piece.length);
    bytes.set(this.#rest);
    bytes.set(piece, this.#rest.length);
    const view = new DataView(bytes.buffer);
    let at = 0;
    while (bytes.length - at >= HEAD) {
      const length = view.getUint32(at, true);
      if (length > LARGEST) throw new RangeError(`a frame of ${length} bytes`);
      if (bytes.length - at < HEAD + length) break;
      yield {
        index: view.getUint32(at + 4, true),
        time: Number(view.getBigUint64(at + 8, true)) / 1000,
        prompt: view.getUint32(at + 16, true),
        png: bytes.subarray(at + HEAD, at + HEAD + length),
      };
      at += HEAD + length;
    }
    this.#rest = bytes.slice(at);
  }
}

// Reads one stream at a time and calls draw(frame, bitmap). `ended()` says whether a closed connection is the end.
// The server is at most two blocks ahead of the clock: where more waits we are behind, and skip to the newest.
export class Player {
  #stop = null;
  #waiting = [];
  #timer = 0;
  #base = null;  // the page's time of the stream's time 0

  constructor({ draw, ended, lost }) {
    this.draw = draw;
    this.ended = ended;
    this.lost = lost;
    this.skipped = 0;
  }

  get open() { return this.#stop !== null; }

  // `still`: one frame and no more.
  async start({ id, fps, block_frames: block }, still = false) {
    this.close();
    this.ahead = 1000 * (2 * block + 1) / fps;  // ms
    const stop = this.#stop = new AbortController();
    let wait = 500;
    while (!stop.signal.aborted) {
      try {
        const response = await call(`/pom/v1/streams/${id}/frames`, { signal: stop.signal });
        wait = 500;
        this.lost(false);
        await this.#read(response.body.getReader(), stop, still);
      } catch (error) {
        if (error instanceof RangeError) console.warn(error);
      }
      if (stop.signal.aborted || await this.ended()) break;
      this.lost(true);
      await sleep(wait);
      wait = Math.min(2 * wait, 8000);
    }
    if (this.#stop === stop) this.close();
  }

  close() {
    this.#stop?.abort();
    this.#stop = null;
    clearTimeout(this.#timer);
    for (const { bitmap } of this.#waiting.splice(0)) bitmap.close();
    this.#base = null;
    this.lost(false);
  }

  async #read(reader, stop, still) {
    const frames = new Frames();
    this.#base = null;
    let last = null;
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const all = [...frames.push(value)];
      for (const frame of all) {
        if (frame.time < all.at(-1).time - this.ahead) continue;  // not worth decoding
        const bitmap = await createImageBitmap(new Blob([frame.png], { type: "image/png" }));
        if (stop.signal.aborted) return bitmap.close();
        if (last !== null && frame.index > last + 1) this.skipped += frame.index - last - 1;
        last = frame.index;
        this.#take({ ...frame, bitmap });
        if (still) return stop.abort();
      }
    }
  }

  #take(frame) {
    const now = performance.now();
    // The first and a late one set the clock: they are due now.
    if (this.#base === null || now > this.#base + frame.time) this.#base = now - frame.time;
    // So does one that is too far ahead.
    if (this.#base + frame.time - now > this.ahead) {
      this.skipped += this.#waiting.length;
      for (const { bitmap } of this.#waiting.splice(0)) bitmap.close();
      this.#base = now - frame.time;
    }
    this.#waiting.push(frame);
    this.#next();
  }

  #next() {
    clearTimeout(this.#timer);
    const now = performance.now();
    let due = null;
    while (this.#waiting.length && this.#base + this.#waiting[0].time <= now + 1) {
      due?.bitmap.close();
      due = this.#waiting.shift();
    }
    if (due) {
      this.draw(due, due.bitmap);
      due.bitmap.close();
    }
    if (this.#waiting.length) {
      this.#timer = setTimeout(() => this.#next(), this.#base + this.#waiting[0].time - now);
    }
  }
}
