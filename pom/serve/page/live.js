// The live view: an endless clip that follows what one tells it.
import { json, post, reason } from "./api.js";
import { learn, on, streams } from "./events.js";
import { Form } from "./form.js";
import { Player } from "./frames.js";
import { Recorder } from "./record.js";
import { $, announce, calm, h, noise, say, seconds } from "./dom.js";

// Of a clip's fields, those that mean nothing to one without end.
const OMIT = ["count", "frames", "stream", "prompt_at"];

const hover = matchMedia("(hover: hover)");

let models = [], form = null, view = null;
let watched = null;  // the id
let choosing = false;  // a new one, while others run
let visible = false, held = calm.matches;
let at = null;  // the frame on the canvas: {index, prompt}
const drawn = [];  // times of the last frames, for their rate
const recorder = new Recorder();

const stream = () => streams.get(watched);
const over = (stream) => stream.state === "ended" || stream.state === "failed";

const player = new Player({ draw, ended, lost: (lost) => { if (view) view.lost.hidden = !lost; } });

function draw(frame, bitmap) {
  const { canvas, glow } = view;
  if (canvas.width !== bitmap.width || canvas.height !== bitmap.height) {
    canvas.width = bitmap.width;
    canvas.height = bitmap.height;
    size(bitmap.width, bitmap.height);
  }
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  glow.getContext("2d").drawImage(bitmap, 0, 0, glow.width, glow.height);
  recorder.draw(bitmap);
  at = { index: frame.index, prompt: frame.prompt };
  canvas.dataset.frame = frame.index;
  const now = performance.now();
  drawn.push(now);
  while (drawn[0] < now - 2000) drawn.shift();
  told();
}

function size(width, height) {
  view.stage.style.setProperty("--w", width);
  view.stage.style.setProperty("--h", height);
}

// A closed connection is the end where the server says so.
async function ended() {
  const id = watched;
  try {
    const now = await json(`/pom/v1/streams/${id}`);
    streams.set(now.id, now);
    told();
    return over(now);
  } catch (error) {
    if (error.status !== 404) return false;
    streams.delete(id);
    if (id === watched) watch(null);
    return true;
  }
}

// Opens or closes the frames as things stand.
function sync() {
  const now = stream();
  const wanted = visible && !document.hidden && now && !over(now);
  if (!wanted) return player.close();
  if (!player.open && !(held && at)) player.start(now, held);
}

// What there is to read about the stream.
function told() {
  const now = stream();
  if (!now || !view) return;
  const still = held || now.state === "paused";
  const states = { starting: "starting", running: "live", resting: "resting", ended: "ended", failed: "failed" };
  const word = over(now) ? states[now.state] : still ? "paused" : states[now.state] ?? now.state;
  view.node.dataset.state = word;
  say(view.state, word);
  say(view.frame, String(at?.index ?? now.frame));
  say(view.rate, `${now.rate ? now.rate.toFixed(1) : "–"} of ${now.fps}`);
  const span = (drawn.at(-1) - drawn[0]) / 1000;
  say(view.shown, span > 0 && !still ? ((drawn.length - 1) / span).toFixed(1) : "–");
  say(view.skipped, String(player.skipped));
  say(view.viewers, String(now.viewers));
  say(view.seed, String(now.seed));
  say(view.error, now.error ? now.error.message ?? now.error : "");
  view.record.setAttribute("aria-pressed", String(recorder.on));
  say(view.record, recorder.on ? "Save" : "Record");
  say(view.pause, still ? "Play" : "Pause");
  for (const button of [view.pause, view.fork, view.stop, view.send, view.record]) button.disabled = over(now);
  view.canvas.setAttribute("aria-label", shownPrompt(now)?.text ?? "a stream");
  timeline(now);
}

// The prompt on the canvas: the one that its frame names.
function shownPrompt(now) {
  const { prompts } = now;
  if (at) return prompts.find(({ number }) => number === at.prompt);
  return prompts.findLast(({ frame }) => frame <= now.frame);
}

function write(text) {
  view.prompt.value = text;
  view.prompt.focus();
}

function timeline(now) {
  const current = shownPrompt(now)?.number;
  const items = view.items;
  for (const { number, text, frame } of now.prompts) {
    if (!items.has(number)) {
      const when = h("span", { class: "when" });
      const again = h("button", { type: "button", class: "text", onclick: () => write(text) }, text);
      items.set(number, { when, node: h("li", { "data-testid": "prompt-item", "data-number": number }, again, when) });
      view.list.prepend(items.get(number).node);
    }
    const { node, when } = items.get(number);
    const ahead = frame - (at?.index ?? now.frame);
    const wait = ahead > 0 && number > (current ?? -1) ? `: in ${seconds(ahead / now.fps)}` : "";
    say(when, number === current ? `from frame ${frame}, on screen` : `from frame ${frame}${wait}`);
    if (number === current) node.setAttribute("aria-current", "true");
    else node.removeAttribute("aria-current");
    node.classList.toggle("ahead", wait !== "");
  }
}

// Shows one stream, or the form for a new one.
export function watch(id) {
  if (id !== watched) {
    player.close();
    recorder.stop();
    watched = id;
    at = null;
    drawn.length = player.skipped = 0;
    view.items.clear();
    view.list.replaceChildren();
    for (const canvas of [view.canvas, view.glow]) canvas.width = canvas.width;  // which clears it
    delete view.canvas.dataset.frame;
  }
  const now = stream();
  if (id) choosing = false;
  const hash = now ? `#live/${id}` : "#live";
  if (visible && location.hash !== hash) history.replaceState(null, "", hash);
  $("live-none").hidden = models.length > 0;
  $("live-watch").hidden = !now;
  $("live-start").hidden = Boolean(now) || models.length === 0;
  if (now) {
    size(now.width, now.height);
    tries(now);
    told();
  } else others();
  sync();
}

// Examples of the stream's model, each of them told by a press.
function tries(now) {
  const examples = models.find(({ id }) => id === now.model)?.examples ?? [];
  view.prompt.placeholder = examples[1] ?? "";
  view.tries.replaceChildren(...examples.slice(0, 4).map((text) => h("button", {
    type: "button", class: "try", onclick: () => { view.prompt.value = text; send(); },
  }, text)));
}

async function send(event) {
  event?.preventDefault();
  const text = view.prompt.value.trim();
  wrong("");
  if (!text || !stream()) return view.prompt.focus();
  try {
    const { number, frame } = await post(`/pom/v1/streams/${watched}/prompt`, { prompt: text });
    const now = stream();
    if (!now.prompts.some((prompt) => prompt.number === number)) now.prompts.push({ number, text, frame });
    view.prompt.value = "";
    const ahead = Math.max(0, frame - (at?.index ?? now.frame)) / now.fps;
    say(view.said, `From frame ${frame}: in ${seconds(ahead)}`);
    told();
  } catch (error) {
    wrong(reason(error));
  }
}

// An error at the prompt's field.
function wrong(text) {
  say(view.wrong, text);
  view.prompt.setAttribute("aria-invalid", String(text !== ""));
  if (text) view.prompt.focus();
}

async function attempt(work) {
  try {
    await work();
  } catch (error) {
    announce(reason(error));
  }
}

const pause = () => attempt(async () => {
  const now = stream();
  if (!now || over(now)) return;
  if (held && now.state !== "paused") {
    held = false;
    player.close();
    told();
    return sync();
  }
  held = false;
  const changed = await post(`/pom/v1/streams/${watched}/pause`, { paused: now.state !== "paused" });
  streams.set(changed.id, changed);
  drawn.length = 0;
  told();
  sync();
});

const fork = () => attempt(async () => {
  const text = view.prompt.value.trim();
  const made = await post(`/pom/v1/streams/${watched}/fork`, text ? { prompt: text } : {});
  view.prompt.value = "";
  learn(streams, made);
  watch(made.id);
  announce("This one goes on from there on its own.");
});

const stop = () => attempt(async () => {
  const made = await json(`/pom/v1/streams/${watched}`, { method: "DELETE" });
  streams.set(made.id, made);
  recorder.stop();
  told();
  sync();
});

function record() {
  recorder.toggle(view.canvas, stream(), `pom-${watched.slice(0, 8)}`, told);
  told();
}

function another() {
  choosing = true;
  watch(null);
  form?.parts.get("prompt")?.focus.focus();
}

// The streams that run, on the form for a new one. The list is built anew only where it is another.
function others() {
  const running = [...streams.values()].filter((stream) => !over(stream)).reverse();
  const place = $("live-others"), text = (stream) => stream.prompts.at(-1)?.text ?? stream.id;
  const list = running.map((stream) => stream.id + text(stream)).join();
  place.hidden = running.length === 0;
  if (place.dataset.list !== list) {
    place.dataset.list = list;
    place.replaceChildren(h("h3", {}, "Running now"), h("ul", { role: "list" }, running.map((stream) => h("li", {},
      h("button", { type: "button", class: "text", onclick: () => watch(stream.id) }, text(stream)),
      h("span", { class: "when" })))));
  }
  const facts = place.querySelectorAll(".when");
  running.forEach(({ frame, seed }, i) => say(facts[i], `frame ${frame}, seed ${seed}`));
}

async function begin(event) {
  event.preventDefault();
  say($("live-error"), "");
  if (!form.check()) return;
  const button = $("live-begin");
  button.disabled = true;
  try {
    const made = await post("/pom/v1/streams", { model: form.model.id, ...form.values() });
    learn(streams, made);
    watch(made.id);
    scrollTo(0, 0);
    (hover.matches ? view.prompt : $("view")).focus({ preventScroll: true });  // no keyboard over the picture
  } catch (error) {
    if (!form.fail(error.param, reason(error))) say($("live-error"), reason(error));
  }
  button.disabled = false;
}

async function choose(model) {
  const schema = await json(`/pom/v1/schema?model=${encodeURIComponent(model.id)}&live=1`);
  form = new Form($("live-fields"), $("live-rest"), schema, model, OMIT);
  form.model = model;
  const prompt = form.parts.get("prompt");
  if (prompt && !prompt.value) prompt.value = model.examples?.[0] ?? "";
}

function buildStart() {
  const options = models.map(({ id }) => h("option", { value: id }, id));
  const pick = models.length > 1 && h("select", { id: "live-model" }, options);
  if (pick) pick.addEventListener("change", () => attempt(() => choose(models.find(({ id }) => id === pick.value))));
  $("live-start").replaceChildren(
    h("div", { class: "screen" }, h("div", { class: "stage idle" }, noise(32)),
      h("section", { id: "live-others", class: "others", hidden: true })),
    h("form", { class: "card", novalidate: true, "aria-label": "A new stream", onsubmit: begin },
      h("p", { class: "lead" }, "A clip without end. Begin with a sentence; tell it something else whenever you like."),
      pick ? h("div", { class: "field" }, h("label", { for: "live-model" }, "Model"), pick) : null,
      h("div", { id: "live-fields", class: "fields" }),
      h("p", { class: "error", id: "live-error", role: "alert" }),
      h("button", { class: "primary wide", id: "live-begin", "data-testid": "live-start" }, "Start the stream"),
      h("div", { id: "live-rest", class: "rest" })));
}

function buildWatch() {
  const button = (text, onclick, attributes = {}) => h("button", { type: "button", onclick, ...attributes }, text);
  const fact = (name, node) => h("div", {}, h("dt", {}, name), h("dd", {}, node));
  view = {
    node: $("live-watch"),
    canvas: h("canvas", { width: "32", height: "32", role: "img", "data-testid": "live-canvas" }),
    glow: h("canvas", { class: "glow", width: "8", height: "8", "aria-hidden": "true" }),
    state: h("output", { class: "state" }),
    lost: h("p", { class: "lost-frames", hidden: true }, "No frames arrive, trying again"),
    prompt: h("input", { id: "live-prompt", type: "text", maxlength: "2000", autocomplete: "off", enterkeyhint: "send",
      "aria-describedby": "live-wrong", "data-testid": "live-prompt" }),
    wrong: h("p", { class: "error", id: "live-wrong", role: "alert" }),
    said: h("output", { class: "said" }),
    tries: h("div", { class: "tries", role: "group", "aria-label": "Examples" }),
    error: h("p", { class: "error" }),
    list: h("ol", { class: "prompts", role: "list", reversed: true }),
    items: new Map(),
    pause: button("Pause", pause, { "data-testid": "live-pause" }),
    fork: button("Fork", fork, { "data-testid": "live-fork", title: "Another stream that goes on from here" }),
    record: button("Record", record, { class: "record", "aria-pressed": "false", title: "From now on, as a file" }),
    stop: button("Stop", stop, { class: "danger", "data-testid": "live-stop" }),
    send: h("button", { class: "primary", "data-testid": "live-send" }, "Tell it"),
    ...Object.fromEntries(["frame", "rate", "shown", "skipped", "viewers", "seed"].map((name) => [name, h("span", {})])),
  };
  view.stage = h("div", { class: "stage" }, view.glow, view.canvas, view.state, view.lost);
  view.node.replaceChildren(
    h("div", { class: "screen" },
      view.stage,
      h("form", { class: "tell", novalidate: true, onsubmit: send },
        h("label", { for: "live-prompt" }, "What happens next"), h("div", { class: "pair" }, view.prompt, view.send),
        view.wrong, view.said, view.tries)),
    h("div", { class: "aside" },
      h("div", { class: "actions" }, view.pause, view.fork, view.record, view.stop,
        button("New", another, { "data-testid": "live-new" })),
      view.error,
      h("dl", { class: "numbers" }, fact("Frame", view.frame), fact("Frames/s made", view.rate),
        fact("Frames/s shown", view.shown), fact("Skipped", view.skipped), fact("Viewers", view.viewers),
        fact("Seed", view.seed)),
      h("h3", {}, "Told so far"), view.list,
      h("p", { class: "keys" },
        h("kbd", {}, "Space"), " pause ", h("kbd", {}, "/"), " prompt ", h("kbd", {}, "n"), " new")));
}

// Keys that are commands unless one is typing or on a button.
function keys(event) {
  if (!visible || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest("input, textarea, select, video, [contenteditable]")) return;
  const watching = !$("live-watch").hidden;
  if (event.key === " " && watching && !event.target.closest("button, a, summary")) pause();
  else if (event.key === "/" && watching) view.prompt.focus();
  else if (event.key === "n") another();
  else return;
  event.preventDefault();
}

// The view comes into sight, with the id of a stream in the address or not.
export function show(id) {
  visible = true;
  const running = [...streams.values()].filter((stream) => !over(stream));
  const chosen = [id, watched].find((id) => streams.has(id));
  watch(chosen ?? (choosing ? null : running.at(-1)?.id) ?? null);
}

export function hide() {
  visible = false;
  sync();
}

export async function start(all) {
  models = all.filter((model) => model.streams);
  buildStart();
  buildWatch();
  document.addEventListener("visibilitychange", sync);
  document.addEventListener("keydown", keys);
  on("hello", () => watch(streams.has(watched) ? watched : null));
  on("stream", (changed) => {
    if (changed.id === watched) told();
    else if (!watched) others();
    sync();
  });
  if (models.length) await choose(models[0]);
}
