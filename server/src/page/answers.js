// Answers as they come. A run is one: { chat, message, abort, phase, since, drawn, resumed, earlier }, kept by its conversation while it lasts.
// `phase` says what is waited for: { kind: 'sent' }, { kind: 'queue', before }, { kind: 'prompt', done, total }, { kind: 'loading', what, done, total },
// { kind: 'retry', why, until }, or { kind: 'text' } once there is some.

import { complete, passes } from './api.js';
import { save, state } from './chats.js';
import { append, before, drop, nameOf, path } from './conversation.js';
import { emit } from './events.js';
import { request } from './request.js';
import { learn, model, refresh, server, well } from './server.js';

export const running = new Map();

/* A server that is full is asked so often again; one that loads, until it is there. */
const ATTEMPTS = 6, LONGEST_WAIT = 15000, LOADING_WAIT = 1500;
/* An answer that grows is kept so often, in milliseconds. */
const SAVED = 1000;

/* Asks after a message, by default the last that is shown. */
export function ask(chat, content, files = [], after = path(chat).at(-1) ?? null) {
  if (running.has(chat.id)) return;
  const message = { role: 'user', content };
  if (files.length) message.files = files;
  append(chat, after, message);
  chat.title ||= nameOf(content || files[0].name);
  answer(chat, message);
}
/* Another answer to the same question. One that failed before its first word leaves no trace. */
export function again(chat, message) {
  halt(chat);
  const question = before(chat, message);
  if (message.error && !message.content && !message.reasoning) drop(chat, message);
  answer(chat, question);
}
/* Asks something else in place of a question, which stays beside it. */
export function reword(chat, message, content) {
  halt(chat);
  const place = before(chat, message);
  if (!place && chat.title === nameOf(message.content)) chat.title = '';
  ask(chat, content, message.files, place);
}
/* Goes on with an answer that was broken off. */
export function resume(chat, message) {
  halt(chat);
  for (const name of ['error', 'code', 'stopped', 'cut']) delete message[name];
  start(chat, message, request(chat, path(chat, message), model()?.id));
}
/* Goes on from another text than an answer has: beside it, so that it stays. */
export function proceed(chat, message, content) {
  const { reasoning, thought, model } = message, kept = { role: 'assistant', content, reasoning: reasoning ?? '', edited: true };
  halt(chat);
  resume(chat, append(chat, before(chat, message), Object.assign(kept, thought && { thought }, model && { model })));
}
function answer(chat, question) {
  const body = request(chat, path(chat, question), model()?.id);
  const message = append(chat, question, { role: 'assistant', content: '', reasoning: '' });
  if (server.models.length > 1) message.model = chat.model = model().id;
  start(chat, message, body);
}
export function halt(chat) {
  const run = running.get(chat.id);
  if (!run) return;
  run.message.stopped = true;
  run.abort.abort();
  end(run);
}

async function start(chat, message, body) {
  const run = { chat, message, abort: new AbortController(), phase: { kind: 'sent' }, since: Date.now(), drawn: 0, resumed: !!message.content, earlier: message.stats?.tokens ?? 0 };
  running.set(chat.id, run);
  save(chat);
  if (chat === state.chat) emit('shown', { follow: true }); else emit('chats');
  const clock = setInterval(() => grew(run), 500);
  try {
    await persist(run, body);
    well();
  } catch (fault) {
    // Where only the last word about an answer is lost, the answer is not.
    if (!run.abort.signal.aborted && !(fault.kind === 'broken' && run.finished)) {
      if (!fault.kind) console.error(fault);
      Object.assign(message, { error: fault.message, code: fault.code });
      learn(fault);
    }
  }
  clearInterval(clock);
  end(run);
  refresh();
}
function end(run) {
  cancelAnimationFrame(run.drawn);
  if (running.get(run.chat.id) !== run) return;
  running.delete(run.chat.id);
  if (state.chats.includes(run.chat)) save(run.chat);
  emit('answer', run);
  emit('chats');
}
/* Asks, and asks again where the server is full or not there yet. */
async function persist(run, body) {
  for (let attempt = 1;; attempt++) {
    try { return await listen(run, body); }
    catch (fault) {
      const loading = fault.code === 'model_loading';
      if (run.abort.signal.aborted || run.phase.kind === 'text' || !passes(fault) || attempt >= ATTEMPTS && !loading) throw fault;
      if (loading) learn(fault);
      const wait = loading ? LOADING_WAIT : Math.max((fault.wait ?? 0) * 1000, Math.min(LONGEST_WAIT, 1000 * 2 ** (attempt - 1)));
      run.phase = { kind: 'retry', loading, why: fault.message, until: Date.now() + wait };
      grew(run);
      await pause(wait, run.abort.signal);
    }
  }
}
const pause = (time, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, time);
  signal.addEventListener('abort', () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
});
async function listen(run, body) {
  const { message } = run;
  run.phase = { kind: 'sent' };
  let saved = Date.now();
  for await (const chunk of complete(body, run.abort.signal)) {
    if (run.abort.signal.aborted) return;
    take(run, chunk);
    grew(run);
    if (Date.now() - saved > SAVED) { save(run.chat); saved = Date.now(); }
  }
}
function take(run, chunk) {
  const { message } = run, choice = chunk.choices?.[0], { reasoning_content: reasoning, content } = choice?.delta ?? {};
  if (chunk.prompt_progress) run.phase = { kind: 'prompt', done: chunk.prompt_progress.processed, total: chunk.prompt_progress.total };
  if (chunk.loading) { if (run.phase.kind !== 'loading') refresh(); run.phase = { kind: 'loading', ...chunk.loading }; }
  if (chunk.queue) run.phase = { kind: 'queue', before: chunk.queue.before };
  if (reasoning || content) run.phase = { kind: 'text' };
  if (reasoning) { run.thinking ||= Date.now(); message.reasoning += reasoning; }
  if (content) {
    if (run.thinking && !message.thought) message.thought = Date.now() - run.thinking;
    message.content += content;
  }
  if (choice?.finish_reason) run.finished = true;
  if (choice?.finish_reason === 'length') message.cut = true;
  const { timings, usage } = chunk;
  if (timings) message.stats = { ...message.stats, tokens: run.earlier + timings.predicted_n, rate: timings.predicted_per_second };
  if (usage) Object.assign(message.stats ??= {}, { prompt: usage.prompt_tokens - run.earlier, cached: usage.prompt_tokens_details?.cached_tokens });
}
/* Has it drawn with the next frame. */
function grew(run) {
  run.drawn ||= requestAnimationFrame(() => { run.drawn = 0; if (running.get(run.chat.id) === run) emit('answer', run); });
}
/* A page that goes away keeps what there is. */
addEventListener('pagehide', () => { for (const run of running.values()) { run.message.stopped = true; save(run.chat); } });
