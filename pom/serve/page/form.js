// A form out of the JSON Schema of a job: the server declares a field once, and it appears here.
import { h, words } from "./dom.js";

const MAIN = ["class", "prompt", "seed", "count"];  // always in sight; the rest is folded by group
const MOST_CHIPS = 60;
let numbers = 0;

const types = (field) => [field.type ?? "string"].flat();
const numeric = (field) => types(field).every((type) => type === "integer" || type === "number");
const has = (field, type) => types(field).includes(type);

// Radio buttons that look like chips. `choices` are [value, text].
export function chips(legend, choices, chosen, changed = () => {}) {
  const name = `chips-${++numbers}`;
  const inputs = choices.map(([value]) => h("input", {
    type: "radio", name, value, checked: String(value) === String(chosen), onchange: changed,
  }));
  const labels = choices.map(([, text], i) => h("label", { class: "chip" }, inputs[i], h("span", {}, text)));
  const row = h("div", { class: "row" }, labels);
  row.style.setProperty("--letters", Math.max(...choices.map(([, text]) => text.length)));
  const node = h("fieldset", { class: "field chips" }, h("legend", {}, legend), row);
  return {
    node,
    get focus() { return inputs.find((input) => input.checked) ?? inputs[0]; },
    get value() { return inputs.find((input) => input.checked)?.value ?? ""; },
    set value(value) {  // one that is not among the choices changes nothing
      const input = inputs.find((input) => input.value === String(value));
      if (input) input.checked = true;
    },
  };
}

// A control with label, hint and place for an error around it.
function labelled(name, field, control, ...extra) {
  const id = control.id = `field-${++numbers}`;
  const hint = field.description && h("p", { class: "hint", id: `${id}-hint` }, field.description);
  if (hint) control.setAttribute("aria-describedby", hint.id);
  const box = has(field, "boolean");
  const label = h("label", { for: id }, box ? [control, h("span", {}, words(name))] : words(name));
  const kind = box ? "field check" : numeric(field) || field.enum ? "field small" : "field";
  return h("div", { class: kind }, label, box ? null : control, ...extra, hint);
}

function seedField(name, field) {
  const control = h("input", { type: "number", inputmode: "numeric", min: "0", max: field.maximum, step: "1" });
  const random = h("input", { type: "checkbox", id: `field-${++numbers}` });
  const roll = () => String(crypto.getRandomValues(new Uint32Array(1))[0] % 1_000_000);
  const turn = (on) => {
    random.checked = control.disabled = on;
    if (on) control.value = "";
    control.placeholder = on ? "new each time" : "";
  };
  random.addEventListener("change", () => {
    turn(random.checked);
    if (!random.checked) control.value = roll();
  });
  const box = h("label", { class: "beside", for: random.id }, random, h("span", {}, "Random"));
  const node = labelled(name, field, control);
  node.prepend(h("div", { class: "pair" }, node.querySelector("label"), box));
  return {
    node,
    get focus() { return random.checked ? random : control; },
    get value() { return random.checked ? "-1" : control.value; },
    set value(value) {
      turn(value === "" || Number(value) < 0);
      if (!random.checked) control.value = value;
    },
  };
}

function promptField(name, field, model) {
  const control = h("textarea", { rows: "3", maxlength: "2000", spellcheck: "true" });
  const examples = model.examples?.length ? model.examples : field.examples ?? [];
  const tries = examples.slice(0, 4).map((text) => h("button", {
    type: "button", class: "try", onclick: () => { control.value = text; control.focus(); },
  }, text));
  const list = tries.length ? h("div", { class: "tries", role: "group", "aria-label": "Examples" }, tries) : null;
  return plain(labelled(name, field, control, list), control);
}

function classField(name, field, model) {
  const names = model.classes?.length ? model.classes : field.examples ?? [];
  if (!names.length || names.length > MOST_CHIPS) return listField(name, { ...field, examples: [...names, "all"] });
  const choices = [...names, "all"].map((text) => [text, text]);
  return chips(words(name), choices, field.default ?? names[0]);
}

// A text with suggestions.
function listField(name, field) {
  const options = (field.examples ?? []).map((value) => h("option", { value }));
  const list = h("datalist", { id: `list-${++numbers}` }, options);
  const control = h("input", { type: "text", list: field.examples && list.id, autocomplete: "off" });
  return plain(labelled(name, field, control, list), control);
}

function plain(node, control) {
  return {
    node,
    focus: control,
    get value() { return control.value; },
    set value(value) { control.value = value; },
  };
}

function makeField(name, field, model) {
  if (name === "class") return classField(name, field, model);
  if (name === "prompt") return promptField(name, field, model);
  if (name === "seed" && field.minimum === -1) return seedField(name, field);
  if (field.enum) {
    const empty = field.default === undefined ? [h("option", { value: "" }, "as the model has it")] : [];
    const options = field.enum.map((value) => h("option", { value }, String(value)));
    const control = h("select", {}, empty, options);
    return plain(labelled(name, field, control), control);
  }
  if (has(field, "boolean")) {
    const control = h("input", { type: "checkbox" });
    return {
      node: labelled(name, field, control),
      focus: control,
      get value() { return control.checked; },
      set value(value) { control.checked = value === true; },
    };
  }
  if (has(field, "array") && !has(field, "string")) {
    const control = h("textarea", { rows: "2", placeholder: "one on each line" });
    return plain(labelled(name, field, control), control);
  }
  if (!numeric(field)) return listField(name, field);
  const step = has(field, "number") ? "any" : "1";
  const range = { min: field.minimum, max: field.maximum, step, inputmode: step === "1" ? "numeric" : "decimal" };
  const control = h("input", { type: "number", placeholder: "as the model has it", ...range });
  return plain(labelled(name, field, control), control);
}

// The JSON of what stands in a field; undefined is left out of the request.
function parsed(field, value) {
  if (typeof value === "boolean") return value;
  const text = String(value).trim();
  if (text === "") return undefined;
  if (has(field, "array") && !has(field, "string")) return text.split("\n").filter((line) => line.trim());
  const number = Number(text);
  if (numeric(field) || (types(field).some((type) => type !== "string") && Number.isFinite(number))) return number;
  return text;
}

// What is wrong with a field before anybody asks the server.
function mistake(name, field, part, required) {
  if (part.focus.validity?.badInput) return "This is not a number.";
  const value = parsed(field, part.value);
  if (value === undefined) return required ? `${words(name)} is missing.` : "";
  if (typeof value !== "number") return "";
  if (has(field, "integer") && !has(field, "number") && !Number.isInteger(value)) return "This must be a whole number.";
  const { minimum: least = -Infinity, maximum: most = Infinity } = field;
  return value >= least && value <= most ? "" : `This must be from ${least} to ${most}.`;
}

export class Form {
  // Builds itself into `place`, what is folded into `rest`. Fields in `omit` are not for this form.
  constructor(place, rest, schema, model, omit = []) {
    this.schema = schema;
    this.parts = new Map();
    this.groups = new Map();
    const shown = [];
    for (const [name, field] of Object.entries(schema.properties)) {
      if (omit.includes(name)) continue;
      const part = makeField(name, MAIN.includes(name) ? { ...field, description: "" } : field, model);
      part.node.dataset.param = name;
      this.parts.set(name, part);
      if (name !== "class") part.value = field.default ?? "";
      if (MAIN.includes(name)) shown.push(part.node);
      else this.#group(field["x-group"] ?? "More", name).append(part.node);
    }
    place.replaceChildren(...shown);
    rest.replaceChildren(...this.groups.values());
  }

  #group(title, name) {
    if (!this.groups.has(title)) {
      const summary = h("summary", {}, h("span", {}, title), h("small", {}));
      this.groups.set(title, h("details", { class: "group" }, summary, h("div", { class: "fields" })));
    }
    const group = this.groups.get(title), small = group.querySelector("small");
    small.append(small.textContent ? `, ${name.replaceAll("_", " ")}` : name.replaceAll("_", " "));
    return group.lastChild;
  }

  // What differs from the defaults, and what is required.
  values() {
    const values = {};
    for (const [name, part] of this.parts) {
      const field = this.schema.properties[name], value = parsed(field, part.value);
      if (value === undefined || (value === false && field.default === undefined)) continue;
      if (String(value) !== String(field.default) || this.schema.required?.includes(name)) values[name] = value;
    }
    return values;
  }

  set(values) {
    for (const [name, part] of this.parts) {
      const field = this.schema.properties[name], value = values[name] ?? field.default ?? "";
      part.value = value;
      if (String(value) !== String(field.default ?? "")) part.node.closest("details")?.setAttribute("open", "");
    }
  }

  // True where nothing is wrong; else the first mistake is shown.
  check() {
    this.clear();
    for (const [name, part] of this.parts) {
      const text = mistake(name, this.schema.properties[name], part, this.schema.required?.includes(name));
      if (text) return !this.fail(name, text);
    }
    return true;
  }

  // Shows an error at its field and goes there; false where there is no such field.
  fail(name, text) {
    const part = this.parts.get(name);
    if (!part) return false;
    const id = `error-${++numbers}`;
    part.node.append(h("p", { class: "error", id, role: "alert" }, text));
    part.node.classList.add("wrong");
    part.node.closest("details")?.setAttribute("open", "");
    const control = part.focus;
    if (control.type !== "radio") control.setAttribute("aria-invalid", "true");
    control.setAttribute("aria-describedby", [control.getAttribute("aria-describedby"), id].filter(Boolean).join(" "));
    control.focus();
    return true;
  }

  clear() {
    for (const { node } of this.parts.values()) {
      const error = node.querySelector(".error");
      if (!error) continue;
      node.classList.remove("wrong");
      for (const control of node.querySelectorAll("[aria-describedby]")) {
        const rest = (control.getAttribute("aria-describedby") ?? "").split(" ").filter((id) => id !== error.id);
        control.removeAttribute("aria-invalid");
        if (rest.join("")) control.setAttribute("aria-describedby", rest.join(" "));
        else control.removeAttribute("aria-describedby");
      }
      error.remove();
    }
  }
}
