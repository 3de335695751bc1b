// The official JavaScript client against a running server: client.cjs BASE_URL BASE_URL_WITH_KEY KEY.
// The folder that holds node_modules is in GRISTMILL_NODE_MODULES, or this one.
'use strict';
const assert = require('node:assert');
const { createRequire } = require('node:module');
const path = require('node:path');
const folder = process.env.GRISTMILL_NODE_MODULES;
const { OpenAI } = (folder ? createRequire(path.resolve(folder, 'here.js')) : require)('openai');

const [base, guarded, key] = process.argv.slice(2);
const client = new OpenAI({ baseURL: base, apiKey: 'none', maxRetries: 0, timeout: 120000 });
const JAPAN = [{ role: 'user', content: 'What is the capital of Japan?' }];
const STORY = [{ role: 'user', content: 'Tell me a story.' }];
const TOKYO = 'The capital of Japan is Tokyo.';
const parameters = {
  type: 'object',
  properties: { city: { type: 'string', enum: ['Tokyo', 'Paris'] }, days: { type: 'integer', minimum: 1, maximum: 9 } },
  required: ['city', 'days'],
  additionalProperties: false,
};
const tools = [{ type: 'function', function: { name: 'get_weather', description: 'The weather.', parameters } }];

const checks = {
  async models() {
    assert.deepStrictEqual((await client.models.list()).data.map(model => model.id), ['demo']);
  },
  async chat() {
    const answer = await client.chat.completions.create({ model: 'demo', messages: JAPAN, temperature: 0 });
    assert.strictEqual(answer.choices[0].message.content, TOKYO);
    assert(answer.usage.total_tokens > 10);
    const several = await client.chat.completions.create({ model: 'demo', messages: STORY, n: 2, seed: 1, max_tokens: 9, logprobs: true });
    assert.deepStrictEqual(several.choices.map(choice => [choice.finish_reason, choice.logprobs.content.length]), [['length', 9], ['length', 9]]);
  },
  async stream() {
    const chunks = await client.chat.completions.create({ model: 'demo', messages: JAPAN, temperature: 0, stream: true, stream_options: { include_usage: true } });
    let text = '', usage = null;
    for await (const chunk of chunks) {
      text += chunk.choices[0]?.delta.content ?? '';
      usage = chunk.usage ?? usage;
    }
    assert.strictEqual(text, TOKYO);
    assert(usage.completion_tokens > 3);
    const left = await client.chat.completions.create({ model: 'demo', messages: STORY, stream: true });
    for await (const _ of left) break;
    const whole = await client.chat.completions.stream({ model: 'demo', messages: JAPAN, temperature: 0 }).finalContent();
    assert.strictEqual(whole, TOKYO);
  },
  async completions() {
    const answer = await client.completions.create({ model: 'demo', prompt: 'Once upon a time', max_tokens: 8, temperature: 0 });
    assert(answer.choices[0].text.startsWith(' there was'));
  },
  async responses() {
    const answer = await client.responses.create({ model: 'demo', input: JAPAN, temperature: 0 });
    assert.strictEqual(answer.output_text, TOKYO);
    const streamed = await client.responses.stream({ model: 'demo', input: JAPAN, temperature: 0 }).finalResponse();
    assert.strictEqual(streamed.output_text, TOKYO);
  },
  async embeddings() {
    const { data } = await client.embeddings.create({ model: 'demo', input: ['a', 'b'] });
    assert(data.length === 2 && Math.abs(data[0].embedding.reduce((sum, x) => sum + x * x, 0) - 1) < 1e-4);
  },
  async tools() {
    const asked = { model: 'demo', messages: JAPAN, tools, tool_choice: { type: 'function', function: { name: 'get_weather' } }, seed: 1, parallel_tool_calls: false };
    const { message, finish_reason } = (await client.chat.completions.create(asked)).choices[0];
    assert.deepStrictEqual([finish_reason, message.tool_calls.length, message.tool_calls[0].function.name], ['tool_calls', 1, 'get_weather']);
    const { city, days } = JSON.parse(message.tool_calls[0].function.arguments);
    assert(['Tokyo', 'Paris'].includes(city) && days >= 1 && days <= 9);
    const streamed = await client.chat.completions.stream(asked).finalMessage();
    assert.deepStrictEqual(JSON.parse(streamed.tool_calls[0].function.arguments), { city, days });
  },
  async schemas() {
    const schema = { type: 'object', properties: { city: { enum: ['Tokyo', 'Paris'] }, sure: { type: 'boolean' } }, required: ['city', 'sure'], additionalProperties: false };
    const response_format = { type: 'json_schema', json_schema: { name: 'answer', strict: true, schema } };
    const answer = await client.chat.completions.create({ model: 'demo', messages: JAPAN, response_format, seed: 2 });
    const value = JSON.parse(answer.choices[0].message.content);
    assert(['Tokyo', 'Paris'].includes(value.city) && typeof value.sure === 'boolean');
  },
  async errors() {
    const refused = async (settings, Kind, code) => {
      await assert.rejects(client.chat.completions.create({ model: 'demo', messages: JAPAN, ...settings }), error => {
        assert(error instanceof Kind, String(error));
        assert.strictEqual(error.code ?? error.param, code);
        return true;
      });
    };
    await refused({ model: 'gpt-9' }, OpenAI.NotFoundError, 'model_not_found');
    await refused({ temperature: 'hot' }, OpenAI.BadRequestError, 'temperature');
    await refused({ messages: [{ role: 'user', content: 'word '.repeat(9000) }] }, OpenAI.BadRequestError, 'context_length_exceeded');
    await assert.rejects(new OpenAI({ baseURL: guarded, apiKey: 'wrong', maxRetries: 0 }).models.list(), OpenAI.AuthenticationError);
    assert.strictEqual((await new OpenAI({ baseURL: guarded, apiKey: key }).models.list()).data[0].id, 'demo');
  },
};

(async () => {
  for (const [name, check] of Object.entries(checks)) {
    await check();
    console.log(name, 'passed');
  }
})().catch(error => {
  console.error(error);
  process.exit(1);
});
