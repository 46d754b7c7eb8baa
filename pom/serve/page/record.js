// Records what a canvas shows, scaled up so that pixels stay pixels, and saves it as WebM.
import { announce, h } from "./dom.js";

const SIDE = 512;

export class Recorder {
  static works = typeof MediaRecorder === "function" && "captureStream" in HTMLCanvasElement.prototype;

  #recorder = null;
  #canvas = null;

  get on() { return this.#recorder !== null; }

  toggle(canvas, fps, name) {
    if (this.#recorder) return this.stop();
    const scale = Math.max(1, Math.floor(SIDE / Math.max(canvas.width, canvas.height)));
    this.#canvas = h("canvas", { width: canvas.width * scale, height: canvas.height * scale });
    this.draw(canvas);
    const pieces = [], recorder = new MediaRecorder(this.#canvas.captureStream(fps), { videoBitsPerSecond: 4_000_000 });
    recorder.ondataavailable = ({ data }) => pieces.push(data);
    recorder.onstop = () => {
      const url = URL.createObjectURL(new Blob(pieces, { type: "video/webm" }));
      h("a", { href: url, download: name }).click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
      announce(`Saved as ${name}.`);
    };
    recorder.start(1000);
    this.#recorder = recorder;
  }

  draw(image) {
    if (!this.#canvas) return;
    const context = this.#canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(image, 0, 0, this.#canvas.width, this.#canvas.height);
  }

  stop() {
    this.#recorder?.stop();
    this.#recorder = this.#canvas = null;
  }
}
