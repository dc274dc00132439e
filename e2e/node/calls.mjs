// Makes calls with the official SDKs for JavaScript. Each line of standard input is a call as JSON, each line of standard output
// the outcome of one; calls run side by side, and the process ends with its input.
//
//   {"id": 1, "sdk": "openai", "url": "http://…", "key": "tg-…", "model": "…", "user": "…", "maxTokens": 10,
//    "headers": {}, "stream": false}
//   {"id": 1, "text": "…"}
//   {"id": 1, "error": {"classes": ["RateLimitError", "APIError", …], "status": 429, "type": "…", "code": "…", "message": "…", "requestId": "…"}}
import { createInterface } from "node:readline";

import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const messages = [{ role: "user", content: "Hello" }];

const sdks = {
  async openai(call, options) {
    const client = new OpenAI({ baseURL: `${call.url}/v1`, apiKey: call.key });
    const params = { model: call.model, messages, max_tokens: call.maxTokens, user: call.user };
    if (!call.stream) {
      const answer = await client.chat.completions.create(params, options);
      return answer.choices[0].message.content;
    }
    let text = "";
    for await (const chunk of await client.chat.completions.create({ ...params, stream: true }, options)) {
      text += chunk.choices[0]?.delta?.content ?? "";
    }
    return text;
  },

  async anthropic(call, options) {
    const client = new Anthropic({ baseURL: call.url, apiKey: call.key, authToken: null });
    const params = { model: call.model, messages, max_tokens: call.maxTokens, metadata: { user_id: call.user } };
    if (!call.stream) {
      const answer = await client.messages.create(params, options);
      return answer.content.map((block) => block.text ?? "").join("");
    }
    return await client.messages.stream(params, options).finalText();
  },
};

// What an error says of itself, as its SDK parsed it.
function described(error) {
  const classes = [];
  for (let c = error.constructor; c.name; c = Object.getPrototypeOf(c)) classes.push(c.name);
  const body = error.error?.error ?? error.error; // Anthropic's keeps the whole body, OpenAI's the object "error"
  return {
    classes,
    status: error.status ?? 0,
    type: error.type ?? "",
    code: error.code ?? error.errorCode ?? "",
    message: body?.message ?? error.message,
    requestId: error.requestID ?? "",
  };
}

async function outcome(call) {
  try {
    return { id: call.id, text: await sdks[call.sdk](call, { headers: call.headers }) };
  } catch (error) {
    return { id: call.id, error: described(error) };
  }
}

const lines = createInterface({ input: process.stdin });
lines.on("line", async (line) => console.log(JSON.stringify(await outcome(JSON.parse(line)))));
lines.on("close", () => process.exit());
console.log(JSON.stringify({ id: 0 })); // all is loaded
