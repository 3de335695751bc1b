// The list of conversations: search, names, files.

import { halt, running } from './answers.js';
import { begin, remove, rename, restore, save, show, state } from './chats.js';
import { $, el, iconButton, toast } from './dom.js';
import { emit, on } from './events.js';
import { toggleMenu } from './menu.js';
import { MOST_BYTES, download, missing, read, write } from './portable.js';

const DAY = 864e5, NEW = 'New conversation';
/* Characters of a text that are shown around what was found. */
const AROUND = 28;
// The id of the one that is given a name, and its field.
let renaming = null, field = null, listing = false;

/* Where a conversation has what is searched: '' for its title, a piece of a message, or null for nowhere. */
function found(chat, wanted) {
  if (chat.title.toLowerCase().includes(wanted)) return '';
  for (const { content } of chat.messages) {
    const at = content.toLowerCase().indexOf(wanted);
    if (at < 0) continue;
    const [start, end] = [Math.max(0, at - AROUND), at + wanted.length + AROUND];
    return ((start ? '…' : '') + content.slice(start, end) + (end < content.length ? '…' : '')).replace(/\s+/g, ' ');
  }
  return null;
}
function snippet(text, wanted) {
  const at = text.toLowerCase().indexOf(wanted);
  return el('small', {}, text.slice(0, at), el('mark', {}, text.slice(at, at + wanted.length)), text.slice(at + wanted.length));
}
function discard(chat) {
  const at = state.chats.indexOf(chat), shown = chat === state.chat;
  halt(chat);
  remove(chat);
  toast('Conversation deleted', 'Undo', () => restore(chat));
  if (!shown) ($('chats').querySelectorAll('.open')[at] ?? $('new')).focus();
}
const fileName = chat => `${(chat.title || 'conversation').replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 40) || 'conversation'}.json`;
export const exportAll = () => download('gristmill-conversations.json', write(state.chats));
export async function importFile(file) {
  try {
    if (file.size > MOST_BYTES) throw new Error(`This file is larger than ${MOST_BYTES / 1e6} MB.`);
    const chats = missing(read(await file.text()), state.chats);
    const all = chats.every(chat => save(chat, false));
    emit('chats');
    if (all) toast(chats.length === 1 ? '1 conversation imported' : `${chats.length} conversations imported`, ...chats.length ? ['Show', () => show(chats[0])] : []);
  } catch (error) { toast(error.message); }
}
function menuOf(chat) {
  const button = iconButton('more', `Options of ${chat.title || NEW}`, () => toggleMenu(button, [
    ['pen', 'Rename', () => startRenaming(chat)], ['download', 'Export', () => download(fileName(chat), write([chat]))], ['trash', 'Delete', () => discard(chat)],
  ]));
  button.dataset.key = 'menu ' + chat.id;
  button.setAttribute('aria-haspopup', 'menu');
  button.setAttribute('aria-expanded', 'false');
  return button;
}
function startRenaming(chat) {
  renaming = chat.id;
  field = nameField(chat);
  list();
  field.select();
}
function nameField({ id, title }) {
  const end = keep => {
    // A list that is drawn anew takes the field out for a moment.
    if (renaming !== id || listing) return;
    const title = node.value.trim(), chat = state.chats.find(one => one.id === id);
    renaming = null;
    if (keep && chat && title && title !== chat.title) rename(chat, title); else list();
    if (keep !== 'left') $('chats').querySelector(`[data-key="${CSS.escape(id)}"]`)?.focus();
  };
  const node = el('input', { class: 'name', value: title, 'aria-label': 'Name of the conversation', maxLength: 200, onblur: () => end('left') });
  node.addEventListener('keydown', event => {
    if (event.key !== 'Enter' && event.key !== 'Escape') return;
    event.stopPropagation();
    // The button that gets the keyboard is not pressed by the same key.
    event.preventDefault();
    end(event.key === 'Enter');
  });
  return node;
}
function entry(chat, wanted, where) {
  const current = chat === state.chat, row = el('div', { class: current ? 'chat current' : 'chat' });
  if (chat.id === renaming) { row.append(field); return row; }
  const open = el('button', { type: 'button', class: 'open', title: chat.title, onclick: () => show(chat), ondblclick: () => startRenaming(chat) }, el('span', {}, chat.title || NEW));
  if (where) open.append(snippet(where, wanted));
  open.dataset.key = chat.id;
  open.addEventListener('keydown', event => { if (event.key === 'F2') startRenaming(chat); if (event.key === 'Delete') discard(chat); });
  if (current) open.setAttribute('aria-current', 'true');
  row.append(open);
  if (running.has(chat.id)) row.append(el('i', { class: 'busy', role: 'img', title: 'Answering', 'aria-label': 'Answering' }));
  row.append(menuOf(chat));
  return row;
}
function list() {
  const held = document.activeElement?.dataset.key;
  const today = new Date().setHours(0, 0, 0, 0), wanted = $('search').value.trim().toLowerCase();
  const ages = [['Today', today], ['Yesterday', today - DAY], ['Last week', today - 7 * DAY], ['Earlier', -Infinity]], nodes = [];
  let last = null;
  listing = true;
  for (const chat of state.chats) {
    const where = wanted ? found(chat, wanted) : '';
    if (where === null) continue;
    const age = ages.find(([, since]) => chat.updated >= since)[0];
    if (age !== last) nodes.push(el('h2', {}, last = age));
    nodes.push(entry(chat, wanted, where));
  }
  const { selectionStart, selectionEnd } = field ?? {};
  $('nothing').hidden = !wanted || nodes.length > 0;
  $('chats').replaceChildren(...nodes);
  listing = false;
  if (renaming && field.isConnected) { field.focus(); field.setSelectionRange(selectionStart, selectionEnd); }
  else if (held) $('chats').querySelector(`[data-key="${CSS.escape(held)}"]`)?.focus();
}
on('shown', list);
on('chats', list);
$('search').addEventListener('input', list);
$('search').addEventListener('keydown', event => {
  if (event.key === 'Enter') $('chats').querySelector('.open')?.click();
  if (event.key === 'ArrowDown') { event.preventDefault(); $('chats').querySelector('.open')?.focus(); }
  if (event.key === 'Escape' && $('search').value) { event.stopPropagation(); $('search').value = ''; list(); }
});
/* Up and down go through the list. */
$('chats').addEventListener('keydown', event => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], all = [...$('chats').querySelectorAll('.open')], at = all.indexOf(document.activeElement);
  if (!step || at < 0) return;
  event.preventDefault();
  (all[at + step] ?? (step < 0 ? $('search') : all[at])).focus();
});
$('new').onclick = begin;
