// Conversations as a file: one JSON object { format, version, conversations }, each as it is kept in the browser.

import { revive } from './conversation.js';

const FORMAT = 'gristmill-conversations', VERSION = 1;
/* Twice what a browser keeps for a page. */
export const MOST_BYTES = 20e6;

export const write = chats => JSON.stringify({ format: FORMAT, version: VERSION, conversations: chats }, null, 1);

/* The conversations of a file. Throws with words for a person where it is none. */
export function read(text) {
  let file;
  try { file = JSON.parse(text); } catch { throw new Error('This file is not JSON.'); }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) throw new Error('This file has no conversations of this page.');
  if (file.version !== VERSION) throw new Error(`This file is of version ${Number(file.version)}; this page reads version ${VERSION}.`);
  const chats = file.conversations.map(one => revive(one));
  if (chats.includes(null)) throw new Error('A conversation of this file cannot be read; nothing was imported.');
  return chats;
}
/* Those that are not among `present` yet. One that has gone another way since becomes a second one. */
export function missing(chats, present) {
  const same = (a, b) => JSON.stringify([a.title, a.settings, a.messages]) === JSON.stringify([b.title, b.settings, b.messages]);
  const out = [];
  for (const chat of chats) {
    const mine = [...present, ...out].find(other => other.id === chat.id);
    if (mine && same(mine, chat)) continue;
    out.push(mine ? { ...chat, id: crypto.randomUUID?.() ?? `${chat.id}-${Date.now()}-${out.length}` } : chat);
  }
  return out;
}
export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  const link = document.createElement('a');
  Object.assign(link, { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
