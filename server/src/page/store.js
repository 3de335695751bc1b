// What is kept in the browser: conversations, how new ones begin, the key.

import { revive, reviveSettings } from './conversation.js';
import { toast } from './dom.js';

const PREFIX = 'gristmill.';

export const store = {
  get(key, otherwise) { try { return JSON.parse(localStorage.getItem(PREFIX + key)) ?? otherwise; } catch { return otherwise; } },
  /* Whether there was room. */
  set(key, value) {
    try { localStorage.setItem(PREFIX + key, JSON.stringify(value)); return true; }
    catch { toast('The browser has no room left: this conversation is not kept. Export and delete old ones.'); return false; }
  },
  remove(key) { localStorage.removeItem(PREFIX + key); },
};
/* The name of what an event of storage is about, or null. */
export const keyOf = event => event.key?.startsWith(PREFIX) ? event.key.slice(PREFIX.length) : null;

/* How new conversations begin. */
export const defaults = () => reviveSettings(store.get('settings', {}));
export const key = () => store.get('key', null) ?? store.get('settings', {}).key ?? '';

/* A conversation, or null. */
export const keptChat = id => revive(store.get('chat.' + id, null), defaults());
/* All of them, the latest first. */
export function keptChats() {
  const all = [];
  for (let i = 0; i < localStorage.length; i++) {
    const name = localStorage.key(i);
    if (!name.startsWith(PREFIX + 'chat.')) continue;
    const chat = keptChat(name.slice(PREFIX.length + 'chat.'.length));
    if (chat) all.push(chat);
  }
  return all.sort((a, b) => b.updated - a.updated);
}
export const keep = chat => store.set('chat.' + chat.id, chat);
export const forget = chat => store.remove('chat.' + chat.id);
