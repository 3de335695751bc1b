// The server's interface: what is asked, and what comes back. Nothing here draws.

import { key } from './store.js';

/* Why there is no answer, or no more of it. `kind` is 'refused' (the server said why), 'gone' (nobody answers), 'broken' (the answer had
   begun); `wait` are the seconds after which the server wants to be asked again. */
class Fault extends Error {
  constructor(kind, message, { code, status, wait } = {}) { super(message); Object.assign(this, { kind, code, status, wait }); }
}
/* Refusals that pass by themselves, whatever a client does. */
const FULL = new Set(['queue_full', 'too_many_connections', 'too_many_bodies', 'model_loading']);
export const passes = fault => fault.kind === 'refused' && (FULL.has(fault.code) || (fault.status === 429 || fault.status === 503) && !['engine_failed', 'model_not_loaded'].includes(fault.code) && !!fault.wait);

function headers() {
  const secret = key();
  return { 'Content-Type': 'application/json', ...(secret ? { Authorization: `Bearer ${secret}` } : {}) };
}
async function refusal(response) {
  const more = { status: response.status, wait: Number(response.headers.get('Retry-After')) || undefined };
  try {
    const { message, code } = JSON.parse(await response.text()).error;
    return new Fault('refused', String(message), { ...more, code });
  } catch { return new Fault('refused', `${response.status} ${response.statusText}`, more); }
}
async function asked(path, options = {}) {
  let response;
  try { response = await fetch(path, { ...options, headers: headers() }); } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Fault('gone', 'The server does not answer. Is it still running?');
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

/* The models that are served: [{ id, context, size, status }], size in bytes, status as { value: 'loaded' | 'loading' | 'unloaded', failed?, message?, done?, total? }. */
export async function models() {
  const { data } = await (await asked('v1/models')).json();
  return data.map(({ id, max_model_len, meta, status }) => ({ id, context: max_model_len ?? null, size: meta?.size ?? null, status: status ?? { value: 'loaded' } }));
}
/* The tokens of the prompt that a request makes, and of the context: { used, whole }; null where the server does not tell. */
export async function promptSize(body, signal) {
  let response;
  try { response = await asked('apply-template', { method: 'POST', body: JSON.stringify(body), signal }); } catch (fault) {
    // One that does not fit is refused, with its tokens.
    const [, used, whole] = fault.code === 'context_length_exceeded' && /(\d+) tokens > (\d+) maximum/.exec(fault.message) || [];
    if (!whole) throw fault;
    return { used: Number(used), whole: Number(whole) };
  }
  const { n_tokens: used, n_ctx: whole } = await response.json();
  return Number.isFinite(used) && Number.isFinite(whole) ? { used, whole } : null;
}
/* What the server says of itself, whether or not it is well: { status, message?, done?, total? }. */
export async function health() {
  try { return await (await fetch('health')).json(); } catch { return { status: 'gone' }; }
}

/* How a server says in a comment what a request waits for: other clients read past it. */
const COMMENTS = [
  [/^: ?(waiting to be loaded|loading weights|compiling kernels)(?: (\d{1,15}) of (\d{1,15}))?$/m, ([, what, done, total]) => ({ loading: { what, done: Number(done ?? 0), total: Number(total ?? 0) } })],
  [/^: ?waiting behind (\d{1,9})$/m, ([, before]) => ({ queue: { before: Number(before) } })],
  [/^: ?prompt (\d{1,9}) of (\d{1,9})$/m, ([, processed, total]) => ({ prompt_progress: { processed: Number(processed), total: Number(total) } })],
];
const commented = event => COMMENTS.map(([pattern, read]) => [pattern.exec(event), read]).filter(([found]) => found).map(([found, read]) => read(found));
/* The data of server-sent events, one by one. Comments are told as the chunks that they stand for. */
async function* serverEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let held = '';;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const events = held.split('\n\n');
    held = events.pop();
    for (const event of events) {
      for (const chunk of commented(event)) yield JSON.stringify(chunk);
      const data = event.split('\n').filter(line => line.startsWith('data:')).map(line => line.slice(5).trimStart()).join('\n');
      if (data) yield data;
    }
  }
}
/* The chunks of an answer as they come. */
export async function* complete(body, signal) {
  const response = await asked('v1/chat/completions', { method: 'POST', body: JSON.stringify(body), signal });
  try {
    for await (const data of serverEvents(response)) {
      if (data === '[DONE]') return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Fault('refused', String(chunk.error.message), { code: chunk.error.code });
      yield chunk;
    }
  } catch (error) {
    if (error instanceof Fault || signal.aborted) throw error;
  }
  throw new Fault('broken', 'The connection broke off before the answer had ended. The server may have been restarted.');
}
