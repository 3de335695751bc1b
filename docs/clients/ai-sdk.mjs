// Vercel's AI SDK against a running server: ai-sdk.mjs BASE_URL. The folder that holds node_modules is in GRISTMILL_NODE_MODULES, or this one.
import assert from 'node:assert';
import { createRequire } from 'node:module';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const folder = process.env.GRISTMILL_NODE_MODULES ?? path.dirname(new URL(import.meta.url).pathname);
const require = createRequire(path.resolve(folder, 'here.js'));
const load = name => import(pathToFileURL(require.resolve(name)).href);
const { generateText, streamText, generateObject } = await load('ai');
const { createOpenAICompatible } = await load('@ai-sdk/openai-compatible');
const { createOpenAI } = await load('@ai-sdk/openai');
const { createAnthropic } = await load('@ai-sdk/anthropic');
const { z } = await load('zod');

const base = process.argv[2];
const prompt = 'What is the capital of Japan?';
const tokyo = 'The capital of Japan is Tokyo.';
const models = [
  createOpenAICompatible({ name: 'gristmill', baseURL: `${base}/v1`, supportsStructuredOutputs: true })('demo'),
  createOpenAI({ baseURL: `${base}/v1`, apiKey: 'none' }).responses('demo'),
  createAnthropic({ baseURL: `${base}/v1`, apiKey: 'none' })('demo'),
];
for (const model of models) {
  const asked = { model, prompt, temperature: 0, maxOutputTokens: 50, maxRetries: 0 };
  assert.strictEqual((await generateText(asked)).text, tokyo);
  let text = '';
  for await (const part of streamText(asked).textStream) text += part;
  assert.strictEqual(text, tokyo);
  const schema = z.object({ city: z.enum(['Tokyo', 'Paris']), sure: z.boolean() });
  const { object } = await generateObject({ model, prompt, schema, maxRetries: 0, maxOutputTokens: 200 });
  assert(['Tokyo', 'Paris'].includes(object.city));
  console.log(model.provider, 'passed');
}
