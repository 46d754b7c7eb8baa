// Calls of the server, with its key where it has one, and its errors.
import { $, calm, say } from "./dom.js";

const kept = "pom-key";
let key = sessionStorage.getItem(kept) ?? "";
let asking = null;

export class ApiError extends Error {
  constructor(status, error, retry) {
    super(error?.message ?? `the server answered ${status}`);
    this.status = status;
    this.param = error?.param ?? null;
    this.code = error?.code ?? null;
    this.retry = retry;
  }
}

// One dialog however many calls wait for it.
function askForKey() {
  asking ??= new Promise((done) => {
    const dialog = $("key"), field = $("key-field");
    if (key) say($("key-note"), "That key was not accepted.");
    field.setAttribute("aria-invalid", key ? "true" : "false");
    field.value = "";
    dialog.onclose = () => {
      if (!field.value) return dialog.showModal();
      key = field.value;
      field.value = "";
      sessionStorage.setItem(kept, key);
      asking = null;
      done();
    };
    dialog.showModal();
  });
  return asking;
}

// A broken connection is an error of status 0.
function unanswered(error) {
  throw error.name === "AbortError" ? error : new ApiError(0, { message: "the server does not answer." });
}

// The response of a call that went well; else throws ApiError.
export async function call(path, { method = "GET", body, headers = {}, signal } = {}) {
  for (;;) {
    const used = key;
    const all = { ...headers };
    if (used) all.Authorization = `Bearer ${used}`;
    if (body !== undefined) all["Content-Type"] = "application/json";
    const options = { method, headers: all, signal, body: body && JSON.stringify(body) };
    const response = await fetch(path, options).catch(unanswered);
    if (response.ok) return response;
    const told = await response.json().catch(() => null);
    if (response.status !== 401) {
      throw new ApiError(response.status, told?.error, Number(response.headers.get("Retry-After")) || 0);
    }
    if (used === key) await askForKey();
  }
}

export async function json(path, options) {
  return (await call(path, options)).json();
}

export const post = (path, body, headers) => json(path, { method: "POST", body, headers });

// What a person reads of an error.
export function reason(error) {
  const text = error.message[0].toUpperCase() + error.message.slice(1);
  return error.retry ? `${text} Try again in ${error.retry} s.` : text;
}

// Where the bytes of a picture are: its address, or a blob: URL where the address alone will not do, because of
// the key or because the page may play no other videos (media-src).
const blobs = new Map();
export function source({ url, type }) {
  if (!key && !type.startsWith("video/")) return Promise.resolve(url);
  if (!blobs.has(url)) {
    const made = call(url).then((response) => response.blob()).then((blob) => URL.createObjectURL(blob));
    made.catch(() => blobs.delete(url));
    blobs.set(url, made);
  }
  return blobs.get(url);
}

export function release({ url }) {
  blobs.get(url)?.then((blob) => URL.revokeObjectURL(blob), () => {});
  blobs.delete(url);
}

// An image or a video of a picture. `controls` are for a large view.
export function media(picture, subject, controls = false) {
  const video = picture.type.startsWith("video/");
  const node = document.createElement(video ? "video" : "img");
  if (video) {
    node.loop = node.muted = node.playsInline = true;
    node.controls = controls;
    node.setAttribute("aria-label", subject);
    node.autoplay = !calm.matches;
  } else {
    node.alt = subject;
    node.decoding = "async";
  }
  node.dataset.kind = picture.type;
  source(picture).then((url) => { node.src = url; }, () => {});  // what is gone shows its alt text
  return node;
}
