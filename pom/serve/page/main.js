// Puts the page together: views, colours, the form for a job, and what events change.
import { json, post, reason } from "./api.js";
import { follow, jobs, learn, on } from "./events.js";
import { chips, Form } from "./form.js";
import * as gallery from "./gallery.js";
import * as live from "./live.js";
import * as wall from "./jobs.js";
import { $, announce, h, say, seconds, sleep } from "./dom.js";

// Colours.

const themes = { auto: "as the system has them", light: "light", dark: "dark" };

function paint(theme) {
  document.documentElement.dataset.theme = theme;
  say($("theme-name"), `Colours: ${themes[theme]}`);
  localStorage.setItem("pom-theme", theme);
}

const kept = localStorage.getItem("pom-theme");
paint(kept in themes ? kept : "auto");
$("theme").addEventListener("click", () => {
  const names = Object.keys(themes);
  paint(names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length]);
});

// Views, by the address: #make, #live, #live/ID.

let settled = false;  // events have told the state once

function route() {
  const [name, id] = location.hash.slice(1).split("/");
  const view = name === "live" ? "live" : "make";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = view === "live" ? "Live · pom" : "pom";
  if ($(`${view}-view`).hidden) scrollTo(0, 0);
  if (view === "live") $("picture").close();
  $("make-view").hidden = view !== "make";
  $("live-view").hidden = view !== "live";
  if (view === "live" && settled) live.show(id);
  else live.hide();
}

$("skip").addEventListener("click", (event) => {
  event.preventDefault();  // the address is for views
  $("view").focus();
});

// The form for a job.

let models = [], model = null, form = null, busy = false;
const schemas = new Map();

async function schemaOf(id) {
  if (!schemas.has(id)) schemas.set(id, await json(`/pom/v1/schema?model=${encodeURIComponent(id)}`));
  return schemas.get(id);
}

async function choose(id) {
  const schema = await schemaOf(id);
  model = models.find((model) => model.id === id);
  form = new Form($("make-fields"), $("make-rest"), schema, model);
  say($("make-title"), model.makes === "clips" ? "Make a clip" : "Make a picture");
  const { makes, size: [width, height], frames } = model;
  say($("make-about"), `${makes} of ${frames > 1 ? `${frames} frames, ` : ""}${width}×${height} pixels`);
  forecast();
}

let asked = 0;
function forecast() {
  clearTimeout(asked);
  say($("make-cost"), "");
  asked = setTimeout(async () => {
    const used = form, values = form.values();
    if (!form.schema.required?.every((name) => name in values)) return;
    try {
      const { seconds: time } = await post("/pom/v1/forecast", { model: model.id, ...values });
      if (form === used && time >= 0.05) say($("make-cost"), `≈ ${seconds(time)}`);
    } catch {
      // It is no more than a courtesy.
    }
  }, 600);
}

async function submit(body) {
  const key = Array.from(crypto.getRandomValues(new Uint32Array(4)), (word) => word.toString(16)).join("");
  const send = () => post("/pom/v1/jobs", { ...body, previews: true }, { "Idempotency-Key": key });
  // Once more where the connection broke: by its key it is still one job.
  const job = await send().catch((error) => error.status === 0 ? send() : Promise.reject(error));
  learn(jobs, job);
  wall.goTo(job.id);
}

async function make(event) {
  event?.preventDefault();
  if (busy || !form) return;
  say($("make-error"), "");
  if (!form.check()) return;
  busy = true;
  try {
    await submit({ model: model.id, ...form.values() });
  } catch (error) {
    if (!form.fail(error.param, reason(error))) say($("make-error"), reason(error));
  }
  busy = false;
}

function buildForm() {
  const several = models.length > 1;
  const names = models.map(({ id }) => [id, id]);
  const pick = several ? chips("Model", names, models[0].id, (event) => {
    choose(event.target.value).catch((error) => announce(reason(error)));
  }) : null;
  const place = $("make-form");
  place.replaceChildren(
    h("div", {}, pick?.node, h("p", { class: "hint", id: "make-about" })),
    h("div", { id: "make-fields", class: "fields" }),
    h("div", { id: "make-rest", class: "rest" }),
    h("p", { class: "error", id: "make-error", role: "alert" }),
    h("div", { class: "go" },
      h("button", { class: "primary", "data-testid": "make" }, "Make"),
      h("p", { class: "press" }, h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Enter")),
      h("output", { id: "make-cost", class: "cost" })));
  place.addEventListener("submit", make);
  place.addEventListener("input", forecast);
  document.addEventListener("keydown", (event) => {
    const pressed = event.key === "Enter" && (event.ctrlKey || event.metaKey);
    if (pressed && !$("make-view").hidden && !document.querySelector("dialog[open]")) make(event);
  });
  return pick;
}

// Of a picture's complete request what the form of its model knows.
async function settings(picture, seed) {
  const { properties } = await schemaOf(picture.model);
  const all = Object.entries({ ...picture.request, seed });
  return Object.fromEntries(all.filter(([name, value]) => name in properties && value !== null));
}

// What is said at the foot of the header.
async function health() {
  try {
    const { device, version } = await (await fetch("/health")).json();
    say($("health"), `${device} · ${version}`);
  } catch {
    say($("health"), "");
  }
}

// Models may take a while to load, and the server may not be up yet.
async function patiently(work) {
  for (let wait = 500; ; wait = Math.min(2 * wait, 8000)) {
    try {
      return await work();
    } catch (error) {
      if (error.status !== 0 && error.status !== 503) {
        announce(reason(error));
        throw error;
      }
      say($("lost"), error.code === "loading" ? "The server is loading its models" : "Connection lost, trying again");
      $("lost").hidden = false;
      await sleep(wait);
    }
  }
}

let made = 0;
async function fetchPictures() {
  const turn = ++made;
  await sleep(50);  // jobs that end together ask once
  if (turn === made) await gallery.refresh().catch((error) => announce(reason(error)));
}

async function start() {
  addEventListener("hashchange", route);
  route();
  ({ models } = await patiently(() => json("/pom/v1/models")));
  $("lost").hidden = true;
  health();
  const pick = buildForm();
  await patiently(() => choose(models[0].id));
  gallery.start({
    async again(picture) {
      await submit({ model: picture.model, ...await settings(picture, -1) });
      $("picture").close();
    },
    async use(picture) {
      if (model.id !== picture.model) await choose(picture.model);
      if (pick) pick.value = picture.model;
      form.set(await settings(picture, picture.seed));
      $("picture").close();
      form.parts.values().next().value.focus.focus();
      forecast();
    },
  });
  await patiently(() => live.start(models));
  wall.opens((id) => gallery.open(id).catch((error) => announce(reason(error))));
  on("hello", () => {
    wall.show();
    fetchPictures();
    if (!settled) {
      settled = true;
      route();
    }
  });
  const finished = new Set();
  on("job", (job) => {
    wall.show();
    if (job.state !== "completed" || finished.has(job.id)) return;
    finished.add(job.id);
    fetchPictures();
  });
  on("preview", wall.preview);
  let timer;
  on("lost", (lost) => {
    clearTimeout(timer);
    say($("lost"), "Connection lost, trying again");
    if (lost) timer = setTimeout(() => { $("lost").hidden = false; }, 700);
    else $("lost").hidden = true;
  });
  follow();
}

start();
