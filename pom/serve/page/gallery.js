// The gallery, newest first, and the dialog of one picture.
import { call, json, media, post, reason, release, source } from "./api.js";
import { jobs, learn, on } from "./events.js";
import { $, announce, h, say, words } from "./dom.js";

const PAGE = 24;
const pictures = [];  // as on the wall
const tiles = new Map();
let next = null, current = null, actions = {};

// Videos load when they come into sight.
const sight = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    sight.unobserve(target);
    const picture = pictures.find(({ id }) => id === target.dataset.id);
    if (picture) target.append(media(picture, picture.subject));
  }
}, { rootMargin: "300px" });

function tile(picture) {
  const button = h("button", {
    type: "button", class: "tile", "data-id": picture.id, "data-testid": "picture", "aria-label": picture.subject,
    onclick: () => open(picture.id),
  });
  if (picture.type !== "image/png") button.append(h("span", { class: "badge", "aria-hidden": "true" }, "clip"));
  sight.observe(button);
  const caption = h("span", { class: "caption", "aria-hidden": "true" }, picture.subject);
  return h("li", {}, button, caption);
}

function put(picture, before = null) {
  if (tiles.has(picture.id)) return;
  tiles.set(picture.id, tile(picture));
  $("gallery").insertBefore(tiles.get(picture.id), before);
}

function tidy() {
  $("more").hidden = next === null;
  $("gallery-empty").hidden = pictures.length > 0;
}

function clear() {
  pictures.splice(0).forEach(release);
  tiles.clear();
  $("gallery").replaceChildren();
}

// Brings what is new; where that is more than a page, begins again.
export async function refresh() {
  const page = await json(`/pom/v1/pictures?limit=${PAGE}`);
  const fresh = page.pictures.filter(({ id }) => !tiles.has(id));
  if (fresh.length === page.pictures.length) {
    clear();
    next = page.next;
  }
  const first = $("gallery").firstChild;
  pictures.unshift(...fresh);
  for (const picture of fresh) put(picture, first);
  tidy();
}

async function more() {
  const page = await json(`/pom/v1/pictures?limit=${PAGE}&before=${encodeURIComponent(next)}`);
  next = page.next;
  const fresh = page.pictures.filter(({ id }) => !tiles.has(id));
  pictures.push(...fresh);
  for (const picture of fresh) put(picture);
  tidy();
  tiles.get(fresh[0]?.id)?.querySelector("button").focus({ preventScroll: true });
}

function remove(picture) {
  const place = pictures.indexOf(picture);
  if (place >= 0) pictures.splice(place, 1);
  tiles.get(picture.id)?.remove();
  tiles.delete(picture.id);
  release(picture);
  tidy();
  (tiles.get((pictures[place] ?? pictures.at(-1))?.id)?.querySelector("button") ?? $("more")).focus();
}

// The dialog.

let verdict, reproduction = null;

function facts(picture) {
  const list = h("dl", { class: "settings" });
  const rows = { model: picture.model, ...picture.request, made: new Date(picture.created * 1000).toLocaleString() };
  for (const [name, value] of Object.entries(rows)) {
    if (value === null || value === "" || name === "class" || name === "prompt") continue;
    list.append(h("div", {}, h("dt", {}, words(name)), h("dd", {}, String(value))));
  }
  return list;
}

async function attempt(work) {
  try {
    await work();
  } catch (error) {
    say(verdict, reason(error));
  }
}

async function download(picture) {
  const name = picture.subject.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60), end = picture.url.split(".").pop();
  const link = h("a", { download: `${name}-${picture.seed}.${end}` });
  link.href = await source(picture);
  link.click();
}

async function reproduce(picture, button) {
  button.disabled = true;
  say(verdict, "Making it again");
  await attempt(async () => {
    const job = await post("/pom/v1/reproduce", { picture: picture.id });
    reproduction = { job: job.id, picture: picture.id, button };
    judged(learn(jobs, job));
  });
  if (!reproduction) button.disabled = false;
}

// What became of a reproduction; said in passing where its picture is no longer open.
function judged(job) {
  if (job.id !== reproduction?.job) return;
  if (job.state === "queued" || job.state === "running") return;
  const { agrees, different_pixels: different } = job.reproduces ?? {};
  let text = "It could not be compared.";
  if (job.state === "completed" && agrees === true) text = "Made again: the pixels agree.";
  if (job.state === "completed" && agrees === false) text = `Made again: ${different} pixels differ.`;
  if (job.state === "failed") text = job.error?.message ?? job.error ?? text;
  if (current?.id === reproduction.picture && $("picture").open) {
    verdict.dataset.agrees = String(agrees);
    say(verdict, text);
  } else announce(text);
  reproduction.button.disabled = false;
  reproduction = null;
}

async function erase(picture, button) {
  if (!button.dataset.sure) {
    button.dataset.sure = "yes";
    return say(button, "Really delete?");
  }
  await attempt(async () => {
    await call(`/pom/v1/pictures/${picture.id}`, { method: "DELETE" });
    $("picture").close();
    remove(picture);
    announce("Deleted.");
  });
}

function step(by) {
  const picture = pictures[pictures.indexOf(current) + by];
  if (!picture) return;
  fill(picture);
  $("picture-title").focus();
}

function fill(picture) {
  current = picture;
  const button = (text, work, attributes) => {
    const node = h("button", { type: "button", ...attributes }, text);
    node.addEventListener("click", () => work(node));
    return node;
  };
  verdict = h("output", { class: "verdict", "data-testid": "reproduce-verdict" });
  const shown = media(picture, picture.subject, true);
  shown.style.setProperty("--w", picture.width);
  shown.style.setProperty("--h", picture.height);
  const place = pictures.indexOf(picture);
  $("picture").replaceChildren(
    h("div", { class: "easel" }, shown),
    h("div", { class: "label" },
      h("div", { class: "title" },
        h("h2", { id: "picture-title", tabindex: "-1" }, picture.subject),
        button("Close", () => $("picture").close(), { class: "quiet" })),
      h("div", { class: "actions" },
        button("Another seed", () => attempt(() => actions.again(picture)), { class: "primary" }),
        button("Use these settings", () => attempt(() => actions.use(picture))),
        button("Reproduce", (node) => reproduce(picture, node), {
          "data-testid": "reproduce", hidden: picture.type !== "image/png",  // clips are not compared
        }),
        button("Download", () => attempt(() => download(picture))),
        button("Delete", (node) => erase(picture, node), { class: "danger" })),
      verdict,
      facts(picture),
      h("div", { class: "turns" },
        button("Newer", () => step(-1), { class: "quiet", disabled: place <= 0 }),
        button("Older", () => step(1), { class: "quiet", disabled: place + 1 >= pictures.length }))));
}

export async function open(id) {
  let picture = pictures.find((picture) => picture.id === id);
  if (!picture) {
    await refresh();
    picture = pictures.find((picture) => picture.id === id);
  }
  if (!picture) return announce("That picture is no longer there.");
  fill(picture);
  if (!$("picture").open) $("picture").showModal();
}

// `given` has what a picture's buttons do elsewhere: again(picture), use(picture).
export function start(given) {
  actions = given;
  const dialog = $("picture");
  $("more").addEventListener("click", () => more().catch((error) => announce(reason(error))));
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => dialog.replaceChildren());
  dialog.addEventListener("keydown", (event) => {
    if (event.target.tagName === "VIDEO") return;
    if (event.key === "ArrowLeft") step(-1);
    if (event.key === "ArrowRight") step(1);
  });
  on("job", judged);
}
