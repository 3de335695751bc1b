// The conversations, and which of them is shown.

import { fresh } from './conversation.js';
import { emit } from './events.js';
import { defaults, forget, keep, keptChat, keptChats, store } from './store.js';

export const state = { chats: keptChats(), chat: null };

const sort = () => state.chats.sort((a, b) => b.updated - a.updated);

/* Keeps a conversation as it is now; `touched` also says that it is the latest. Whether there was room. */
export function save(chat, touched = true) {
  if (touched) chat.updated = Date.now();
  if (!state.chats.includes(chat)) state.chats.unshift(chat);
  sort();
  return keep(chat);
}
export function show(chat) {
  state.chat = chat;
  store.set('current', chat.id);
  emit('shown', { other: true });
}
/* A new conversation; the shown one, where it is new itself. */
export function begin() {
  show(state.chat?.messages.length === 0 ? state.chat : fresh(defaults()));
}
export function rename(chat, title) {
  chat.title = title.trim().slice(0, 200);
  save(chat, false);
  emit('chats');
}
/* Takes one away. Another is shown where it was the one. */
export function remove(chat) {
  state.chats = state.chats.filter(other => other !== chat);
  forget(chat);
  if (chat === state.chat) show(state.chats[0] ?? fresh(defaults())); else emit('chats');
}
export function restore(chat) {
  save(chat, false);
  show(chat);
}
/* Reads one anew that another window has changed, or taken away. All others stay the objects that they are. */
export function reread(id) {
  const chat = keptChat(id);
  state.chats = state.chats.filter(other => other.id !== id);
  if (!chat) return;
  state.chats.push(chat);
  sort();
  if (state.chat.id === id) state.chat = chat;
}
/* The one that was shown last, or a new one. */
export function resumeLast() {
  const current = store.get('current', null);
  show(state.chats.find(chat => chat.id === current) ?? fresh(defaults()));
}
