"use strict";
// Chat over /v1/chat/completions, and live figures from /metrics. Text is only ever set as textContent.

const $ = (id) => document.getElementById(id);
const messages = [];
let running = null; // AbortController of the answer that is being made

const headers = () => {
  const key = $("key").value;
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
};

function bubble(kind, text) {
  const element = document.createElement("div");
  element.className = `message ${kind}`;
  element.textContent = text;
  $("log").append(element);
  $("log").scrollTop = $("log").scrollHeight;
  return element;
}

function note(element, text) {
  const small = document.createElement("span");
  small.className = "note";
  small.textContent = text;
  element.append(small);
}

function request() {
  const body = { model: $("model").value || undefined, stream: true, stream_options: { include_usage: true } };
  for (const name of ["temperature", "top_p", "top_k", "max_tokens", "seed"]) {
    if ($(name).value !== "") body[name] = Number($(name).value);
  }
  const system = $("system").value.trim();
  body.messages = [...(system ? [{ role: "system", content: system }] : []), ...messages];
  return body;
}

// The JSON values of a stream of server-sent events.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

async function answer(element, signal) {
  const began = performance.now();
  const response = await fetch("v1/chat/completions", {
    method: "POST", headers: headers(), body: JSON.stringify(request()), signal,
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  let usage = null, reason = null, first = null;
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    usage = event.usage ?? usage;
    for (const choice of event.choices) {
      if (choice.delta.content) {
        first ??= performance.now();
        element.textContent += choice.delta.content;
        $("log").scrollTop = $("log").scrollHeight;
      }
      reason = choice.finish_reason ?? reason;
    }
  }
  const text = element.textContent;
  const seconds = (performance.now() - (first ?? began)) / 1000;
  const rate = usage && usage.completion_tokens > 1 ? `, ${((usage.completion_tokens - 1) / seconds).toFixed(1)} tokens/s` : "";
  note(element, `${usage ? usage.completion_tokens : "?"} tokens${rate}, finish: ${reason}`);
  return text;
}

async function send(event) {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || running) return;
  $("text").value = "";
  messages.push({ role: "user", content: text });
  bubble("user", text);
  const element = bubble("assistant", "");
  running = new AbortController();
  $("send").hidden = true;
  $("stop").hidden = false;
  try {
    messages.push({ role: "assistant", content: await answer(element, running.signal) });
  } catch (error) {
    if (error.name === "AbortError") {
      if (messages.length) messages.push({ role: "assistant", content: element.textContent });
      note(element, "stopped");
    } else {
      messages.pop();
      element.remove();
      bubble("error", error.message);
    }
  } finally {
    running = null;
    $("send").hidden = false;
    $("stop").hidden = true;
    $("text").focus();
  }
}

function clear() {
  running?.abort();
  messages.length = 0;
  $("log").replaceChildren();
}

// Sums of the families in Prometheus text, by name without its prefix.
function families(text) {
  const out = {};
  for (const line of text.split("\n")) {
    const found = /^(?:fastllm_|vllm:)([a-z0-9_]+)\{[^}]*\} (\S+)$/.exec(line);
    if (found) out[found[1]] = (out[found[1]] ?? 0) + Number(found[2]);
  }
  return out;
}

let before = null;

async function live() {
  try {
    const response = await fetch("metrics", { headers: headers() });
    if (!response.ok) throw new Error(response.statusText);
    const now = { ...families(await response.text()), at: performance.now() };
    $("live-running").textContent = now.num_requests_running;
    $("live-waiting").textContent = now.num_requests_waiting;
    $("live-kv").textContent = `${(100 * now.kv_cache_usage_perc).toFixed(1)} %`;
    const asked = now.prefix_cache_queries_total;
    $("live-hits").textContent = asked ? `${((100 * now.prefix_cache_hits_total) / asked).toFixed(1)} %` : "–";
    if (before) {
      const made = now.generation_tokens_total - before.generation_tokens_total;
      $("live-rate").textContent = ((1000 * made) / (now.at - before.at)).toFixed(1);
    }
    before = now;
  } catch {
    for (const name of ["running", "waiting", "kv", "hits", "rate"]) $(`live-${name}`).textContent = "–";
    before = null;
  }
}

async function models() {
  const response = await fetch("v1/models", { headers: headers() });
  if (!response.ok) return;
  const options = (await response.json()).data.map((card) => new Option(card.id, card.id));
  $("model").replaceChildren(...options);
}

$("ask").addEventListener("submit", send);
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", clear);
$("key").addEventListener("change", () => { models(); live(); });
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) send(event);
});
models();
live();
setInterval(live, 1000);
