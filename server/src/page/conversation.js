// A conversation: a tree of messages, of which one path is shown. A question that is asked anew and an answer that is given again are
// siblings of what they replace, so nothing is lost. `parent` is a message's predecessor, `head` the last message of the path.

export const fresh = (settings = {}) => ({ id: crypto.randomUUID?.() ?? String(Date.now() + Math.random()), title: '', updated: Date.now(), settings, messages: [], head: null });

const byId = (chat, id) => chat.messages.find(message => message.id === id);

/* The messages that are shown, first to last, or those up to one of them. */
export function path(chat, end = byId(chat, chat.head)) {
  const out = [], all = new Map(chat.messages.map(message => [message.id, message]));
  for (let message = end; message; message = all.get(message.parent)) out.push(message);
  return out.reverse();
}
export const before = (chat, message) => byId(chat, message.parent) ?? null;

/* A message after another, null for the first; the path leads to it. */
export function append(chat, parent, message) {
  message.id = chat.messages.reduce((most, other) => Math.max(most, other.id), -1) + 1;
  message.parent = parent?.id ?? null;
  chat.messages.push(message);
  chat.head = message.id;
  return message;
}
/* What stands in the same place, itself included. */
export const variants = (chat, message) => chat.messages.filter(other => other.parent === message.parent);

/* Shows a message, and what came last after it. */
export function choose(chat, message) {
  for (let next = message; next; next = chat.messages.findLast(other => other.parent === next.id)) chat.head = next.id;
}
/* Takes away a message that nothing follows. */
export function drop(chat, message) {
  chat.messages = chat.messages.filter(other => other !== message);
  const sibling = chat.messages.findLast(other => other.parent === message.parent);
  if (chat.head !== message.id) return;
  chat.head = message.parent;
  if (sibling) choose(chat, sibling);
}
/* Takes away a message and all that follows it, and tells them; the path leads to what stands beside it, or ends before it. */
export function prune(chat, message) {
  const gone = new Set([message.id]), shown = path(chat).includes(message);
  // Each follows one before it.
  for (const other of chat.messages) if (gone.has(other.parent)) gone.add(other.id);
  const removed = chat.messages.filter(other => gone.has(other.id));
  chat.messages = chat.messages.filter(other => !gone.has(other.id));
  if (!shown) return removed;
  chat.head = message.parent;
  const sibling = chat.messages.findLast(other => other.parent === message.parent);
  if (sibling) choose(chat, sibling);
  return removed;
}
/* Puts back what was pruned, by other numbers: those that it had may be others' by now. */
export function graft(chat, removed) {
  const first = chat.messages.reduce((most, other) => Math.max(most, other.id), -1) + 1;
  const ids = new Map(removed.map((message, at) => [message.id, first + at]));
  for (const message of removed) Object.assign(message, { id: ids.get(message.id), parent: ids.get(message.parent) ?? message.parent });
  chat.messages.push(...removed);
  choose(chat, removed[0]);
}
export const nameOf = content => content.replace(/\s+/g, ' ').trim().slice(0, 60);

/* The conversation that a value from storage or from a file describes, or null. Only what is known here is taken over, in its type. */
const KEPT = { content: 'string', reasoning: 'string', error: 'string', code: 'string', model: 'string', thought: 'number', stopped: 'boolean', cut: 'boolean', edited: 'boolean' };
const STATS = ['tokens', 'rate', 'prompt', 'cached'];
const SETTINGS = ['system', 'temperature', 'top_p', 'top_k', 'min_p', 'repetition_penalty', 'seed', 'max_tokens', 'thinking'];
/* More messages than a person writes in a year: what is drawn looks at all of them for each. */
const MOST_MESSAGES = 5000;
const isObject = value => typeof value === 'object' && value !== null && !Array.isArray(value);

function reviveMessage(raw, last) {
  if (!isObject(raw) || !['user', 'assistant'].includes(raw.role) || typeof raw.content !== 'string') return null;
  const message = { id: last ? last.id + 1 : 0, parent: last?.id ?? null, role: raw.role };
  if (raw.id !== undefined) Object.assign(message, { id: raw.id, parent: raw.parent ?? null });
  for (const [name, type] of Object.entries(KEPT)) if (typeof raw[name] === type) message[name] = raw[name];
  if (isObject(raw.stats)) message.stats = Object.fromEntries(STATS.filter(name => Number.isFinite(raw.stats[name])).map(name => [name, raw.stats[name]]));
  if (Array.isArray(raw.files)) message.files = raw.files.filter(file => typeof file?.name === 'string' && typeof file.text === 'string').map(({ name, text }) => ({ name, text }));
  return message;
}
export function reviveSettings(raw) {
  if (!isObject(raw)) return {};
  const kept = SETTINGS.filter(name => ['string', 'number'].includes(typeof raw[name]) && raw[name] !== '');
  return Object.fromEntries(kept.map(name => [name, String(raw[name])]));
}
export function revive(raw, defaults = {}) {
  if (!isObject(raw) || typeof raw.id !== 'string' || !Array.isArray(raw.messages) || raw.messages.length > MOST_MESSAGES) return null;
  const chat = { ...fresh(raw.settings === undefined ? { ...defaults } : reviveSettings(raw.settings)), id: raw.id };
  if (typeof raw.title === 'string') chat.title = raw.title.slice(0, 200);
  if (typeof raw.model === 'string') chat.model = raw.model;
  if (Number.isFinite(raw.updated)) chat.updated = raw.updated;
  const known = new Set([null]);
  for (const one of raw.messages) {
    const message = reviveMessage(one, chat.messages.at(-1));
    // Each follows one before it, so paths end.
    if (!message || !Number.isSafeInteger(message.id) || known.has(message.id) || !known.has(message.parent)) return null;
    known.add(message.id);
    chat.messages.push(message);
  }
  chat.head = known.has(raw.head) ? raw.head : chat.messages.at(-1)?.id ?? null;
  return chat;
}
