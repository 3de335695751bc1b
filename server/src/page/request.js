// From a conversation to the body of a request.

/* Attachments follow what was written, each in a fence that its text does not contain. */
export function written({ content, files = [] }) {
  const parts = files.map(({ name, text }) => {
    const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map(ticks => ticks.length));
    const fence = '`'.repeat(longest + 1);
    return `File ${name}:\n${fence}\n${text.replace(/\n$/, '')}\n${fence}`;
  });
  return [content, ...parts].filter(Boolean).join('\n\n');
}
const WHOLE = ['top_k', 'seed', 'max_tokens'], NUMBERS = ['temperature', 'top_p', 'min_p', 'repetition_penalty', ...WHOLE];

/* `messages` is the path to the question, or to an answer: the server goes on with a last message of the assistant's. */
export function request(chat, messages, model) {
  const { system, thinking } = chat.settings;
  const body = { model: model ?? undefined, stream: true, stream_options: { include_usage: true }, timings_per_token: true };
  body.messages = messages.filter(m => m.role === 'user' || m.content).map(m => ({ role: m.role, content: written(m) }));
  // Reasoning is of the answer that it led to; a template leaves out what is earlier.
  const begun = messages.at(-1);
  if (begun.role === 'assistant' && begun.reasoning) body.messages.at(-1).reasoning_content = begun.reasoning;
  if (system) body.messages.unshift({ role: 'system', content: system });
  for (const name of NUMBERS) {
    const value = chat.settings[name];
    if (value === undefined || value === '' || !Number.isFinite(Number(value))) continue;
    body[name] = WHOLE.includes(name) ? Math.trunc(Number(value)) : Number(value);
  }
  if (thinking) body.chat_template_kwargs = { enable_thinking: thinking === 'on' };
  return body;
}
