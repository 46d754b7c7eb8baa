// Jobs on the wall: what waits, what is being made with its previews, and the last one that is done.
import { call, media } from "./api.js";
import { jobs } from "./events.js";
import { $, announce, h, noise, say, seconds } from "./dom.js";

const cards = new Map();
const gone = new Set();  // finished ones that a person put away
let open = () => {};

const active = (job) => job.state === "queued" || job.state === "running";

// A place for a picture: noise, then previews, then the picture itself, which opens.
class Plate {
  #preview = null;  // its address
  #shown = null;  // the image of previews
  #made = null;

  constructor(subject) {
    this.subject = subject;
    this.node = h("button", { type: "button", class: "plate", disabled: true, "data-testid": "plate" }, noise());
    this.node.addEventListener("click", () => open(this.#made.id));
  }

  preview(image) {
    if (this.#made) return;
    const bytes = Uint8Array.from(atob(image), (letter) => letter.charCodeAt(0));
    const url = URL.createObjectURL(new Blob([bytes], { type: "image/png" })), before = this.#preview;
    this.#preview = url;
    const shown = this.#shown ??= h("img", { alt: `${this.subject}, not finished` });
    shown.src = url;
    this.node.dataset.previews = Number(this.node.dataset.previews ?? 0) + 1;
    if (!before) this.node.replaceChildren(shown);
    else this.revoke(before);
  }

  finish(picture) {
    if (this.#made) return;
    this.#made = picture;
    this.node.disabled = false;
    this.node.dataset.done = "";
    this.node.setAttribute("aria-label", `Open ${this.subject}`);
    this.node.replaceChildren(media(picture, this.subject));
    this.drop();
  }

  drop() {
    if (this.#preview) this.revoke(this.#preview);
    this.#preview = null;
  }

  // Once the image is there, or will not be: an address that is gone too early is an error on the console.
  revoke(url) {
    this.#shown.decode().catch(() => {}).then(() => URL.revokeObjectURL(url));
  }
}

function told(job) {
  const eta = job.eta === null || job.eta === undefined ? "" : `, about ${seconds(Math.ceil(job.eta))}`;
  switch (job.state) {
    case "queued": return `${job.position > 1 ? `Number ${job.position} in line` : "Next in line"}${eta}`;
    case "running": return "Making it";
    case "completed": return job.started ? `Done in ${seconds(job.finished - job.started)}` : "Done";
    case "failed": return job.error?.message ?? job.error ?? "It failed";
    default: return "Cancelled";
  }
}

class Card {
  constructor(job) {
    this.id = job.id;
    this.plates = job.items.map((item) => new Plate(item.subject));
    this.status = h("output", {});
    this.left = h("span", { class: "left" });
    this.progress = h("progress", { max: "1", value: "0", "aria-label": `Progress of ${this.title(job)}` });
    this.remarks = h("ul", { class: "remarks", role: "list" });
    this.button = h("button", { type: "button", class: "quiet", onclick: () => this.end() }, "Cancel");
    const facts = h("p", { class: "facts" }, this.facts(job));
    const about = h("div", { class: "about" }, h("h4", {}, this.title(job)), facts, this.remarks,
      h("p", { class: "status" }, this.status, this.left), this.progress, this.button);
    const plates = h("div", { class: "plates", "data-count": Math.min(this.plates.length, 5) },
      this.plates.map((plate) => plate.node));
    this.node = h("article", { class: "job card", "data-testid": "job" }, plates, about);
  }

  title(job) {
    const subjects = new Set(job.items.map((item) => item.subject));
    return subjects.size > 1 ? `${subjects.size} classes` : [...subjects][0] ?? job.model;
  }

  facts(job) {
    const [first] = job.items;
    if (!first) return job.model;
    const seeds = job.items.length > 1 ? `seeds ${first.seed} to ${job.items.at(-1).seed}` : `seed ${first.seed}`;
    const frames = first.frames > 1 ? ` · ${first.frames} frames` : "";
    return `${seeds} · ${first.width}×${first.height}${frames} · ${job.model}`;
  }

  update(job) {
    const busy = active(job), { done, total } = job.evaluations ?? {};
    this.node.dataset.state = job.state;
    this.progress.hidden = !busy;
    if (job.state === "running" && total) this.progress.value = done / total;
    say(this.status, told(job));  // read aloud, so without what changes ten times a second
    const left = job.eta > 0 ? `, ${seconds(job.eta)} left` : "";
    say(this.left, job.state === "running" && total ? `${done} of ${total}${left}` : "");
    this.remarks.replaceChildren(...(job.remarks ?? []).map((text) => h("li", {}, text)));
    job.items.forEach((item, i) => item.picture && this.plates[i]?.finish(item.picture));
    if (!busy) for (const plate of this.plates) plate.drop();
    say(this.button, busy ? "Cancel" : "Put away");
    this.button.dataset.testid = busy ? "cancel" : "put-away";
  }

  async end() {
    const job = jobs.get(this.id);
    if (!job || !active(job)) {
      gone.add(this.id);
      return show();
    }
    this.button.disabled = true;
    try {
      await call(`/pom/v1/jobs/${this.id}`, { method: "DELETE" });
    } catch {
      announce("It could not be cancelled.");
    }
    this.button.disabled = false;
  }
}

// All that is under way, oldest last; where nothing is, or where it failed, the newest of the others.
function shown() {
  const all = [...jobs.values()].filter((job) => !job.reproduces && !gone.has(job.id));
  all.sort((a, b) => b.created - a.created);
  const busy = all.filter(active), [rest] = all.filter((job) => !active(job));
  if (rest && (!busy.length || rest.state === "failed")) busy.push(rest);
  return busy;
}

export function show() {
  const list = shown();
  for (const [id, card] of cards) {
    if (list.some((job) => job.id === id)) continue;
    for (const plate of card.plates) plate.drop();
    card.node.remove();
    cards.delete(id);
  }
  list.forEach((job, i) => {
    if (!cards.has(job.id)) cards.set(job.id, new Card(job));
    const card = cards.get(job.id), place = $("job-list");
    card.update(job);
    if (place.children[i] !== card.node) place.insertBefore(card.node, place.children[i] ?? null);
  });
  $("jobs").hidden = list.length === 0;
  say($("jobs-title"), list.some(active) ? "In the making" : "Just made");
}

export function preview({ job, item, image }) {
  cards.get(job)?.plates[item]?.preview(image);
}

export function goTo(id) {
  cards.get(id)?.node.scrollIntoView({ block: "nearest" });
}

export function opens(handler) {
  open = handler;
}
