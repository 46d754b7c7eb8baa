// Elements by hand: whatever a person wrote becomes a text node, never HTML.

export const $ = (id) => document.getElementById(id);

// h("p", {class: "hint", onclick: f}, "text", otherNode). What is undefined, null or false is left out.
export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== undefined && child !== null));
  return node;
}

// A text that is read aloud is set only where it changes.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

let hush;
export function announce(text) {
  clearTimeout(hush);
  say($("say"), text);
  hush = setTimeout(() => say($("say"), ""), 6000);
}

export const calm = matchMedia("(prefers-reduced-motion: reduce)");

export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

export function seconds(value) {
  if (value < 10) return `${Math.max(0, value).toFixed(1)} s`;
  if (value < 90) return `${Math.round(value)} s`;
  return `${Math.round(value / 60)} min`;
}

// "cfg_scale" as a person reads it.
export function words(name) {
  const text = name.replaceAll("_", " ").replace(/\bcfg\b/, "CFG");
  return text[0].toUpperCase() + text.slice(1);
}

// What noise looks like before anything is in it.
export function noise(side = 16) {
  const canvas = h("canvas", { width: side, height: side, "aria-hidden": "true" });
  const context = canvas.getContext("2d"), image = context.createImageData(side, side);
  crypto.getRandomValues(image.data);
  for (let i = 3; i < image.data.length; i += 4) image.data[i] = 110;
  context.putImageData(image, 0, 0);
  return canvas;
}
