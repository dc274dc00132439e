// Uses SDKs and frameworks as their users do: a question, a stream, the round trip of a tool, embeddings, and what goes wrong. Each
// line of standard input is a call as JSON, each line of standard output its outcome; calls run side by side, and the process ends
// with its input.
//
//   {"id": 1, "sdk": "vercel-google", "flow": "stream", "url": "http://…", "key": "tg-…", "models": {"chat": "…", "embed": "…"}, "prompt": "…"}
//   {"id": 1, "result": {…}, "requests": [{"id": "…", "status": 200, "at": 1764500000000, "wait": 1000}]}
//   {"id": 1, "error": {"status": 404, "message": "…"}, "requests": […]}
import { AsyncLocalStorage } from "node:async_hooks";
import { createInterface } from "node:readline";

import Anthropic from "@anthropic-ai/sdk";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createGoogleGenerativeAI } from "@ai-sdk/google";
import { createOpenAI } from "@ai-sdk/openai";
import { GoogleGenAI } from "@google/genai";
import { ChatAnthropic } from "@langchain/anthropic";
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { ChatGoogleGenerativeAI } from "@langchain/google-genai";
import { ChatOpenAI, OpenAIEmbeddings } from "@langchain/openai";
import { embedMany, generateText, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

// What went over the wire for each call is seen where all of them go through.
const calls = new AsyncLocalStorage();
const send = globalThis.fetch;
globalThis.fetch = async (...args) => {
  const response = await send(...args);
  const wait = response.headers.get("retry-after-ms");
  calls.getStore()?.push({
    id: response.headers.get("x-tollgate-request-id") ?? "",
    status: response.status,
    at: Date.now(),
    wait: wait === null ? 0 : Number(wait),
  });
  return response;
};

// rate is the tool that every SDK brings, in JSON schema; it answers 7.
const schema = { type: "object", properties: { word: { type: "string" } }, required: ["word"], additionalProperties: false };
const rated = ({ word }) => ({ word, rating: 7 });

// used is what an SDK says of usage: all input with what was cached, all output with reasoning.
const used = (input, output, cached, reasoning) => ({ input, output, cached: cached ?? 0, reasoning: reasoning ?? 0 });

const openaiUsage = (u) =>
  used(u.prompt_tokens, u.completion_tokens, u.prompt_tokens_details?.cached_tokens, u.completion_tokens_details?.reasoning_tokens);
const responseUsage = (u) => used(u.input_tokens, u.output_tokens, u.input_tokens_details.cached_tokens, u.output_tokens_details.reasoning_tokens);
const anthropicUsage = (u) =>
  used(u.input_tokens + u.cache_read_input_tokens + u.cache_creation_input_tokens, u.output_tokens, u.cache_read_input_tokens, u.output_tokens_details?.thinking_tokens);
const geminiUsage = (u) =>
  used(u.promptTokenCount, (u.candidatesTokenCount ?? 0) + (u.thoughtsTokenCount ?? 0), u.cachedContentTokenCount, u.thoughtsTokenCount);

const openai = {
  client: (call) => new OpenAI({ baseURL: `${call.url}/v1`, apiKey: call.key }),
  async chat(client, { models, prompt }) {
    const answer = await client.chat.completions.create({ model: models.chat, messages: [{ role: "user", content: prompt }] });
    return { text: answer.choices[0].message.content, usage: openaiUsage(answer.usage) };
  },
  async stream(client, { models, prompt }) {
    const stream = client.chat.completions.stream({
      model: models.chat, messages: [{ role: "user", content: prompt }], stream_options: { include_usage: true },
    });
    let pieces = 0;
    stream.on("content", () => pieces++);
    const answer = await stream.finalChatCompletion();
    return { text: answer.choices[0].message.content, usage: openaiUsage(answer.usage), pieces };
  },
  async tools(client, { models, prompt }) {
    const seen = [];
    const runner = client.chat.completions.runTools({
      model: models.chat, messages: [{ role: "user", content: prompt }], stream: true,
      tools: [{ type: "function", function: { name: "rate", parameters: schema, parse: JSON.parse, function: (args) => (seen.push(args), rated(args)) } }],
    });
    return { text: await runner.finalContent(), tool: seen };
  },
  async embed(client, { models }) {
    const answer = await client.embeddings.create({ model: models.embed, input: ["one", "two"] });
    return { vectors: answer.data.length, size: answer.data[0].embedding.length, input: answer.usage.prompt_tokens };
  },
  async images(client, { models }) {
    const answer = await client.images.generate({ model: models.image, prompt: "a cat", n: 2 });
    return { images: answer.data.length, usage: used(answer.usage.input_tokens, answer.usage.output_tokens) };
  },
};

const openaiResponses = {
  client: openai.client,
  async chat(client, { models, prompt }) {
    const answer = await client.responses.create({ model: models.chat, input: prompt });
    return { text: answer.output_text, usage: responseUsage(answer.usage) };
  },
  async stream(client, { models, prompt }) {
    const stream = client.responses.stream({ model: models.chat, input: prompt });
    let pieces = 0;
    stream.on("response.output_text.delta", () => pieces++);
    const answer = await stream.finalResponse();
    return { text: answer.output_text, usage: responseUsage(answer.usage), pieces };
  },
  async tools(client, { models, prompt }) {
    const params = { model: models.chat, tools: [{ type: "function", name: "rate", parameters: schema, strict: true }] };
    const first = await client.responses.create({ ...params, input: prompt });
    const asked = first.output.find((item) => item.type === "function_call");
    const args = JSON.parse(asked.arguments);
    const answer = await client.responses.create({
      ...params, previous_response_id: first.id,
      input: [{ type: "function_call_output", call_id: asked.call_id, output: JSON.stringify(rated(args)) }],
    });
    return { text: answer.output_text, tool: [args] };
  },
  // conversation goes on from a stored response, streamed, and reads it again, which is free.
  async conversation(client, { models, prompt }) {
    const first = await client.responses.create({ model: models.chat, input: prompt });
    let second;
    for await (const event of await client.responses.create({ model: models.chat, input: prompt, previous_response_id: first.id, stream: true })) {
      if (event.type === "response.completed") second = event.response;
    }
    const again = await client.responses.retrieve(second.id);
    return { goesOn: second.previous_response_id === first.id, same: JSON.stringify(again.output) === JSON.stringify(second.output), usage: responseUsage(second.usage) };
  },
};

const anthropic = {
  client: (call) => new Anthropic({ baseURL: call.url, apiKey: call.key, authToken: null }),
  text: (message) => message.content.map((block) => (block.type === "text" ? block.text : "")).join(""),
  async chat(client, { models, prompt }) {
    const answer = await client.messages.create({ model: models.chat, max_tokens: 100, messages: [{ role: "user", content: prompt }] });
    return { text: anthropic.text(answer), usage: anthropicUsage(answer.usage) };
  },
  async stream(client, { models, prompt }) {
    const stream = client.messages.stream({ model: models.chat, max_tokens: 100, messages: [{ role: "user", content: prompt }] });
    let pieces = 0;
    stream.on("text", () => pieces++);
    const answer = await stream.finalMessage();
    return { text: anthropic.text(answer), usage: anthropicUsage(answer.usage), pieces };
  },
  async tools(client, { models, prompt }) {
    const params = { model: models.chat, max_tokens: 100, tools: [{ name: "rate", input_schema: schema }] };
    const messages = [{ role: "user", content: prompt }];
    const first = await client.messages.create({ ...params, messages });
    const asked = first.content.find((block) => block.type === "tool_use");
    messages.push({ role: "assistant", content: first.content });
    messages.push({ role: "user", content: [{ type: "tool_result", tool_use_id: asked.id, content: JSON.stringify(rated(asked.input)) }] });
    const answer = await client.messages.create({ ...params, messages });
    return { text: anthropic.text(answer), tool: [asked.input] };
  },
  async count(client, { models }) {
    return await client.messages.countTokens({ model: models.chat, messages: [{ role: "user", content: "two words" }] });
  },
};

const genai = {
  client: (call) => new GoogleGenAI({ apiKey: call.key, httpOptions: { baseUrl: call.url } }),
  async chat(client, { models, prompt }) {
    const answer = await client.models.generateContent({ model: models.chat, contents: prompt });
    return { text: answer.text, usage: geminiUsage(answer.usageMetadata) };
  },
  async stream(client, { models, prompt }) {
    let text = "", usage, pieces = 0;
    for await (const chunk of await client.models.generateContentStream({ model: models.chat, contents: prompt })) {
      if (chunk.text) pieces++;
      text += chunk.text ?? "";
      usage = chunk.usageMetadata;
    }
    return { text, usage: geminiUsage(usage), pieces };
  },
  async tools(client, { models, prompt }) {
    const config = { tools: [{ functionDeclarations: [{ name: "rate", parametersJsonSchema: schema }] }] };
    const contents = [{ role: "user", parts: [{ text: prompt }] }];
    const first = await client.models.generateContent({ model: models.chat, contents, config });
    const asked = first.functionCalls[0];
    contents.push(first.candidates[0].content);
    contents.push({ role: "user", parts: [{ functionResponse: { name: "rate", response: rated(asked.args) } }] });
    const answer = await client.models.generateContent({ model: models.chat, contents, config });
    return { text: answer.text, tool: [asked.args] };
  },
  async embed(client, { models }) {
    const answer = await client.models.embedContent({ model: models.embed, contents: ["one", "two"] });
    return { vectors: answer.embeddings.length, size: answer.embeddings[0].values.length };
  },
  async count(client, { models }) {
    return { total: (await client.models.countTokens({ model: models.chat, contents: "two words" })).totalTokens };
  },
};

// vercel is the AI SDK over one of its providers.
function vercel(provider, model, embedding) {
  const vercelUsage = (u) => used(u.inputTokens, u.outputTokens, u.inputTokenDetails.cacheReadTokens, u.outputTokenDetails.reasoningTokens);
  return {
    client: provider,
    async chat(client, { models, prompt }) {
      const answer = await generateText({ model: model(client, models.chat), prompt, maxOutputTokens: 100 });
      return { text: answer.text, usage: vercelUsage(answer.usage) };
    },
    async stream(client, { models, prompt }) {
      let pieces = 0, problem;
      const answer = streamText({ model: model(client, models.chat), prompt, maxOutputTokens: 100, onError: ({ error }) => (problem = error) });
      for await (const _ of answer.textStream) pieces++;
      if (problem) throw problem;
      return { text: await answer.text, usage: vercelUsage(await answer.usage), pieces };
    },
    async tools(client, { models, prompt }) {
      const seen = [];
      const rate = tool({ inputSchema: z.object({ word: z.string() }), execute: (args) => (seen.push(args), rated(args)) });
      const answer = await generateText({ model: model(client, models.chat), prompt, maxOutputTokens: 100, tools: { rate }, stopWhen: stepCountIs(3) });
      return { text: answer.text, tool: seen };
    },
    embed: embedding && (async (client, { models }) => {
      const answer = await embedMany({ model: embedding(client, models.embed), values: ["one", "two"] });
      return { vectors: answer.embeddings.length, size: answer.embeddings[0].length };
    }),
  };
}

// langchain is a chat model of LangChain's.
function langchain(create) {
  const chainUsage = (u) => used(u.input_tokens, u.output_tokens, u.input_token_details?.cache_read, u.output_token_details?.reasoning);
  return {
    client: (call) => create(call),
    async chat(client, { prompt }) {
      const answer = await client.invoke(prompt);
      return { text: answer.text, usage: chainUsage(answer.usage_metadata) };
    },
    async stream(client, { prompt }) {
      let whole, pieces = 0;
      for await (const chunk of await client.stream(prompt)) {
        if (chunk.text) pieces++;
        whole = whole ? whole.concat(chunk) : chunk;
      }
      return { text: whole.text, usage: chainUsage(whole.usage_metadata), pieces };
    },
    async tools(client, { prompt }) {
      const bound = client.bindTools([{ name: "rate", description: "Rates a word.", schema: z.object({ word: z.string() }) }]);
      const messages = [new HumanMessage(prompt)];
      const first = await bound.invoke(messages);
      const [asked] = first.tool_calls;
      messages.push(first, new ToolMessage({ name: "rate", tool_call_id: asked.id, content: JSON.stringify(rated(asked.args)) }));
      return { text: (await bound.invoke(messages)).text, tool: [asked.args] };
    },
  };
}

const sdks = {
  "openai": openai,
  "openai-responses": openaiResponses,
  "anthropic": anthropic,
  "genai": genai,
  "vercel-openai": vercel((call) => createOpenAI({ baseURL: `${call.url}/v1`, apiKey: call.key }), (client, name) => client(name), (client, name) => client.textEmbeddingModel(name)),
  "vercel-openai-chat": vercel((call) => createOpenAI({ baseURL: `${call.url}/v1`, apiKey: call.key }), (client, name) => client.chat(name)),
  "vercel-anthropic": vercel((call) => createAnthropic({ baseURL: `${call.url}/v1`, apiKey: call.key }), (client, name) => client(name)),
  "vercel-google": vercel((call) => createGoogleGenerativeAI({ baseURL: `${call.url}/v1beta`, apiKey: call.key }), (client, name) => client(name), (client, name) => client.textEmbeddingModel(name)),
  "langchain-openai": {
    ...langchain((call) => new ChatOpenAI({ model: call.models.chat, apiKey: call.key, configuration: { baseURL: `${call.url}/v1` } })),
    async embed(client, call) {
      const embeddings = new OpenAIEmbeddings({ model: call.models.embed, apiKey: call.key, configuration: { baseURL: `${call.url}/v1` } });
      const vectors = await embeddings.embedDocuments(["one", "two"]);
      return { vectors: vectors.length, size: vectors[0].length };
    },
  },
  "langchain-anthropic": langchain((call) => new ChatAnthropic({ model: call.models.chat, apiKey: call.key, anthropicApiUrl: call.url, maxTokens: 100 })),
  "langchain-google": langchain((call) => new ChatGoogleGenerativeAI({ model: call.models.chat, apiKey: call.key, baseUrl: call.url })),
};

// described finds what an error says of itself: each SDK has its own place for the status.
function described(error) {
  for (let e = error; e; e = e.lastError ?? e.cause) {
    const status = e.status ?? e.statusCode ?? e.response?.status;
    if (typeof status === "number") return { status, message: String(error.message) };
  }
  return { status: 0, message: String(error?.stack ?? error) };
}

async function outcome(call) {
  const requests = [];
  return calls.run(requests, async () => {
    try {
      const sdk = sdks[call.sdk];
      const client = sdk.client(call);
      let result = await sdk[call.flow](client, call);
      // A rate has room for one request: the second is asked to wait, unless so much time has passed.
      for (const end = Date.now() + 60_000; call.again && Date.now() < end && requests.every((r) => r.status === 200); ) result = await sdk[call.flow](client, call);
      return { id: call.id, result, requests };
    } catch (error) {
      return { id: call.id, error: described(error), requests };
    }
  });
}

const lines = createInterface({ input: process.stdin });
lines.on("line", async (line) => console.log(JSON.stringify(await outcome(JSON.parse(line)))));
lines.on("close", () => process.exit());
console.log(JSON.stringify({ id: 0 })); // all is loaded
