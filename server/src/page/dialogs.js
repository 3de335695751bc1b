// Dialogs: how a conversation is answered, the page's settings, a file, the keys.

import { save, state } from './chats.js';
import { reviveSettings } from './conversation.js';
import { $, bytes, copy } from './dom.js';
import { emit, on } from './events.js';
import { connect, server } from './server.js';
import { key, store } from './store.js';

export const dialogIsOpen = () => !!document.querySelector('dialog[open]');
for (const dialog of document.querySelectorAll('dialog')) {
  for (const button of dialog.querySelectorAll('[data-close]')) button.onclick = () => dialog.close();
  // Beside it is out of it.
  dialog.addEventListener('pointerdown', event => { if (event.target === dialog) dialog.close(); });
}
function open(dialog, focus) {
  // One that is open keeps what was typed into it.
  if (dialogIsOpen()) return;
  dialog.showModal();
  // A finger would get the screen's keyboard with a field, over half of the dialog.
  if (!matchMedia('(hover: none)').matches) focus?.focus();
}

/* How this conversation is answered. */
const tune = $('tune').querySelector('form');
export function openTune() {
  const { settings } = state.chat, named = [...tune.elements].filter(field => field.name && field.type !== 'checkbox');
  for (const field of named) field.value = settings[field.name] ?? '';
  tune.elements.default.checked = false;
  $('more').open = ['top_k', 'min_p', 'repetition_penalty', 'seed'].some(name => settings[name]);
  open($('tune'), tune.elements.system);
}
const written = form => reviveSettings(Object.fromEntries([...form.elements].filter(field => field.name && field.value !== '').map(field => [field.name, field.value])));
tune.addEventListener('submit', () => {
  const settings = written(tune);
  state.chat.settings = settings;
  if (state.chat.messages.length) save(state.chat, false);
  if (tune.elements.default.checked) store.set('settings', settings);
  emit('shown', {});
});
$('reset').onclick = () => { for (const field of tune.elements) if (field.name && field.type !== 'checkbox') field.value = ''; tune.elements.system.focus(); };
$('tuning').onclick = openTune;
on('shown', () => {
  const set = Object.keys(state.chat.settings).length;
  $('tuning').classList.toggle('set', set > 0);
  $('tuning').title = set ? 'Settings of this conversation (changed)' : 'Settings of this conversation';
});

/* The page's. */
const panel = $('panel').querySelector('form');
function openSettings(focus) {
  panel.elements.key.value = key();
  open($('panel'), focus ? panel.elements[focus] : panel.elements.key);
}
let refused = false;
panel.addEventListener('submit', () => {
  const { key: old, ...rest } = store.get('settings', {});
  if (old !== undefined) store.set('settings', rest);
  store.set('key', panel.elements.key.value);
  refused = true;
  connect();
});
$('settings').onclick = () => openSettings();
$('unlock').onclick = () => openSettings('key');
$('keys-help').onclick = () => { $('panel').close(); openKeys(); };
/* The dialog opens on what a person did, never by the clock: dismissed, it stays so. */
let asked = false;
on('server', () => {
  const locked = server.status === 'locked';
  $('refusal').hidden = !locked;
  $('refusal').textContent = locked ? (key() ? 'The server does not accept this API key.' : 'The server needs an API key.') : '';
  if (locked && (!asked || refused)) openSettings('key');
  if (server.status !== 'connecting') { asked = true; refused = false; }
});
/* A question was refused for want of a key. */
on('answer', run => { if (run.message.code === 'invalid_api_key') openSettings('key'); });

/* A file that is attached. */
export function viewFile({ name, text }) {
  $('file-title').textContent = name;
  $('file-size').textContent = bytes(text.length);
  $('file-text').textContent = text;
  $('file-copy').onclick = () => copy(text, $('file-copy'));
  open($('file'), $('file-text'));
}
export const openKeys = () => open($('keys'));
