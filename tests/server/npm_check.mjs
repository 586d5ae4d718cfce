// The npm clients `openai` and `@anthropic-ai/sdk` against a server: npm_check.mjs URL. Started by npm_check.py.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const url = process.argv[2];
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const claude = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Say hello." }];
const model = "tiny";
let passed = 0;

async function check(name, run) {
  await run();
  passed += 1;
  console.log(`ok ${name}`);
}

await check("models", async () => {
  assert.deepEqual((await openai.models.list()).data.map((m) => m.id), [model]);
});

await check("chat, whole and streamed", async () => {
  const ask = { model, messages, max_tokens: 12, temperature: 0 };
  const whole = await openai.chat.completions.create(ask);
  let text = "", usage = null;
  for await (const chunk of await openai.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.deepEqual(usage, whole.usage);
});

await check("completions, whole and streamed", async () => {
  const ask = { model, prompt: "ab", max_tokens: 12, temperature: 0 };
  const whole = await openai.completions.create(ask);
  let text = "";
  for await (const chunk of await openai.completions.create({ ...ask, stream: true })) text += chunk.choices[0].text;
  assert.equal(text, whole.choices[0].text);
});

await check("responses, whole and streamed", async () => {
  const ask = { model, input: "Say hello.", max_output_tokens: 12, temperature: 0 };
  const whole = await openai.responses.create(ask);
  const final = await openai.responses.stream(ask).finalResponse();
  assert.equal(final.output_text, whole.output_text);
  assert.ok(whole.usage.output_tokens > 0);
});

await check("messages, whole, streamed, counted", async () => {
  const ask = { model, messages, max_tokens: 12, temperature: 0 };
  const whole = await claude.messages.create(ask);
  const final = await claude.messages.stream(ask).finalMessage();
  assert.equal(final.content[0].text, whole.content[0].text);
  const counted = await claude.messages.countTokens({ model, messages });
  assert.equal(counted.input_tokens, whole.usage.input_tokens + whole.usage.cache_read_input_tokens);
});

await check("errors", async () => {
  await assert.rejects(openai.chat.completions.create({ model: "other", messages }), OpenAI.NotFoundError);
  await assert.rejects(openai.chat.completions.create({ model, messages, temperature: -1 }), OpenAI.BadRequestError);
  await assert.rejects(claude.messages.create({ model, messages, max_tokens: 0 }), Anthropic.BadRequestError);
});

await check("a stream that is aborted", async () => {
  const stream = await openai.chat.completions.create({ model, messages, stream: true, ignore_eos: true, n: 20 });
  for await (const chunk of stream) {
    assert.ok(chunk);
    break; // closes the connection
  }
});

console.log(`${passed} passed, 0 failed`);
