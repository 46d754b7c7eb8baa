// The one connection for events: jobs and streams as the server has them. A fetch and not an EventSource, which
// could not send the key.
import { ApiError, call } from "./api.js";
import { sleep } from "./dom.js";

const SILENCE = 45_000;  // the server says something every 15 s

export const jobs = new Map(), streams = new Map();
const listeners = { hello: [], job: [], preview: [], stream: [], lost: [] };

export function on(name, listener) {
  listeners[name].push(listener);
}

function tell(name, data) {
  for (const listener of listeners[name]) {
    try {
      listener(data);
    } catch (error) {
      reportError(error);  // a mistake of ours is no reason to connect again
    }
  }
}

// What a call answered: events may have told something newer since.
export function learn(table, thing) {
  if (!table.has(thing.id)) table.set(thing.id, thing);
  tell(table === jobs ? "job" : "stream", table.get(thing.id));
  return table.get(thing.id);
}

// Records of server-sent events from pieces of text that end anywhere.
export class Records {
  #rest = "";
  #record = {};

  *push(text) {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop();
    for (const line of lines.map((line) => line.replace(/\r$/, ""))) {
      if (line === "") {
        if (this.#record.data !== undefined) yield this.#record;
        this.#record = {};
        continue;
      }
      const [, name, value] = line.match(/^([^:]*):? ?(.*)$/);
      if (name === "data" && this.#record.data !== undefined) this.#record.data += `\n${value}`;
      else if (name) this.#record[name] = value;
    }
  }
}

let last = null;  // the number of the newest record

function take({ event, id, data }) {
  const number = Number(id);
  if (event !== "hello" && last !== null && number <= last) return;  // older than what hello told
  if (id !== undefined) last = number;
  const value = JSON.parse(data);
  if (event === "hello") {
    jobs.clear();
    streams.clear();
    for (const job of value.jobs) jobs.set(job.id, job);
    for (const stream of value.streams) streams.set(stream.id, stream);
  }
  if (event === "job") jobs.set(value.id, value);
  if (event === "stream") streams.set(value.id, value);
  if (listeners[event]) tell(event, value);
}

async function read(connected) {
  const stop = new AbortController();
  let timer = setTimeout(() => stop.abort(), SILENCE);
  try {
    const headers = last === null ? {} : { "Last-Event-ID": String(last) };
    const response = await call("/pom/v1/events", { headers, signal: stop.signal });
    connected();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const records = new Records();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => stop.abort(), SILENCE);
      for (const record of records.push(value)) take(record);
    }
  } finally {
    clearTimeout(timer);
  }
}

// Never returns.
export async function follow() {
  for (let wait = 500; ; wait = Math.min(2 * wait, 8000)) {
    try {
      await read(() => {
        wait = 500;
        tell("lost", false);
      });
    } catch (error) {
      if (error instanceof ApiError && error.retry) wait = Math.min(Math.max(wait, 1000 * error.retry), 8000);
    }
    tell("lost", true);
    await sleep(wait);
  }
}
