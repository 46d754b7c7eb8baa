// Records a stream from now on and saves it: the server's .mp4, whole frames and none skipped; where it makes none, what
// the canvas shows, as WebM. Either is scaled up, so that pixels stay pixels.
import { call } from "./api.js";
import { announce, h } from "./dom.js";

const SIDE = 512;

function save(pieces, type, name) {
  const url = URL.createObjectURL(new Blob(pieces, { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
  announce(`Saved as ${name}.`);
}

// How many of these bytes of an .mp4 are whole boxes: it may have been cut anywhere, and a fragment is moof and mdat.
export function whole(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  let at = 0, end = 0;
  while (at + 8 <= bytes.length) {
    const size = view.getUint32(at), kind = String.fromCharCode(...bytes.subarray(at + 4, at + 8));
    if (size < 8 || at + size > bytes.length) break;
    at += size;
    if (kind !== "moof") end = at;
  }
  return end;
}

async function joined(pieces) {
  return new Uint8Array(await new Blob(pieces).arrayBuffer());
}

export class Recorder {
  static works = typeof MediaRecorder === "function" && "captureStream" in HTMLCanvasElement.prototype;

  #stop = null;  // the recording that runs: ends and saves it
  #canvas = null;

  get on() { return this.#stop !== null; }

  // `changed` is called when it goes on or off by itself.
  toggle(canvas, { id, fps }, name, changed) {
    if (this.#stop) return this.stop();
    const scale = Math.max(1, Math.floor(SIDE / Math.max(canvas.width, canvas.height)));
    const end = new AbortController();
    this.#stop = () => end.abort();
    this.#fetch(`/pom/v1/streams/${id}/video.mp4?scale=${scale}`, end, `${name}.mp4`).catch((error) => {
      if (end.signal.aborted) return;
      this.#stop = null;
      if (Recorder.works) this.#film(canvas, scale, fps, `${name}.webm`);
      else announce(error.message);
      changed();
    });
  }

  async #fetch(path, end, name) {
    const pieces = [];
    const reader = (await call(path, { signal: end.signal })).body.getReader();
    try {
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        pieces.push(value);
      }
    } catch (error) {
      if (!end.signal.aborted && !pieces.length) throw error;
    }
    if (!end.signal.aborted) this.#stop = null;  // the stream has ended
    const bytes = await joined(pieces), length = whole(bytes);
    if (length) save([bytes.subarray(0, length)], "video/mp4", name);
    else announce("There was nothing to save yet.");
  }

  #film(canvas, scale, fps, name) {
    this.#canvas = h("canvas", { width: canvas.width * scale, height: canvas.height * scale });
    this.draw(canvas);
    const pieces = [], recorder = new MediaRecorder(this.#canvas.captureStream(fps), { videoBitsPerSecond: 4_000_000 });
    recorder.ondataavailable = ({ data }) => pieces.push(data);
    recorder.onstop = () => save(pieces, "video/webm", name);
    recorder.start(1000);
    this.#stop = () => recorder.stop();
  }

  draw(image) {
    if (!this.#canvas) return;
    const context = this.#canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(image, 0, 0, this.#canvas.width, this.#canvas.height);
  }

  stop() {
    this.#stop?.();
    this.#stop = this.#canvas = null;
  }
}
