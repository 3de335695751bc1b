// How much of the context the shown conversation takes with what is written next. The server counts, by the model's own template and
// tokenizer; where it does not, what it told of the last answer has to do.

import { running } from './answers.js';
import { promptSize } from './api.js';
import { state } from './chats.js';
import { draft } from './composer.js';
import { path } from './conversation.js';
import { emit, on } from './events.js';
import { request } from './request.js';
import { model, server } from './server.js';

/* `size` is that of the last count, { used, whole }, of what `text` stands for. */
const counted = { text: '', size: null };
/* Milliseconds without a change before the server is asked again: a count reads the whole prompt. */
const PAUSE = 300;
let timer = 0, abort = null, able = true;

/* The request that a message sent now would be, or the one that is being answered; null where nothing is said yet. */
function next(run) {
  const messages = path(state.chat).filter(message => !(run && message === run.message && !run.resumed)), { content, files } = draft();
  if (!run && (content || files.length)) messages.push({ role: 'user', content, files });
  if (!messages.some(message => message.content || message.files?.length)) return null;
  const { model: id, messages: said, chat_template_kwargs } = request(state.chat, messages, model()?.id);
  return { model: id, messages: said, chat_template_kwargs };
}
async function count() {
  clearTimeout(timer);
  const run = running.get(state.chat.id);
  if (!able || server.status !== 'up' || run?.asked) return;
  if (run) run.asked = true;
  const body = next(run), text = body ? JSON.stringify(body) : '';
  // An older count that is still on its way is of something else.
  abort?.abort();
  if (text === counted.text) { if (run) run.size = counted.size; return; }
  const own = abort = new AbortController();
  let size = null;
  try { size = body && await promptSize(body, own.signal); } catch (fault) {
    // A server without that is not asked again; one that is busy, when something has changed.
    if (fault.status === 404 || fault.status === 405) able = false;
  }
  if (own.signal.aborted) return;
  Object.assign(counted, { text, size });
  if (run) run.size = size;
  emit('counted');
}
const later = () => { clearTimeout(timer); timer = setTimeout(count, PAUSE); };

/* What is known of it: { used, whole }; `whole` is null where the context's size is not known. */
export function contextSize() {
  const run = running.get(state.chat.id), messages = path(state.chat), size = run ? run.size : counted.size;
  const whole = size?.whole ?? model()?.context ?? null;
  let told = 0;
  for (const { stats } of messages) if (stats) told = (stats.prompt ?? told) + (stats.tokens ?? 0);
  if (!run) return { used: size?.used ?? (messages.length || draft().content ? told : 0), whole };
  const prompt = run.phase.kind === 'prompt' ? run.phase.total : size?.used ?? 0;
  return { used: prompt ? prompt + Math.max(0, (run.message.stats?.tokens ?? 0) - run.earlier) : told, whole };
}
on('shown', ({ other }) => { if (other) Object.assign(counted, { text: '', size: null }); count(); });
on('draft', later);
on('answer', run => {
  if (run.chat !== state.chat) return;
  // What is known of the question is not of the answer: until that is counted too, its usage has both.
  if (!running.has(run.chat.id)) Object.assign(counted, { text: '', size: null });
  count();
});
on('server', () => { if (!counted.size) counted.text = ''; later(); });
