// The page: its parts, its keys, and how it begins. What each part knows and draws is in its own file; events.js says how they hear of each other.

import { halt, running } from './answers.js';
import { begin, reread, resumeLast, show, state } from './chats.js';
import { $ } from './dom.js';
import { emit, on } from './events.js';
import { dialogIsOpen, openKeys, openTune } from './dialogs.js';
import { covered, theme, togglePanel } from './frame.js';
import { editLast } from './messages.js';
import './models.js';
import { connect } from './server.js';
import { exportAll, importFile } from './sidebar.js';
import { keyOf } from './store.js';

/* ---- Keys ---- */
const mac = navigator.platform.startsWith('Mac');
function other(step) {
  const at = state.chats.indexOf(state.chat), next = state.chats[at < 0 ? 0 : at + step];
  if (next) show(next);
}
/* By their names: Mod is Ctrl, or ⌘ on a Mac. */
const KEYS = {
  'Mod+K': () => { if (document.body.classList.contains('narrow')) togglePanel(true); $('search').select(); },
  'Mod+Shift+O': () => { begin(); $('input').focus(); },
  'Mod+Shift+S': () => togglePanel(),
  'Mod+Shift+E': () => openTune(),
  'Alt+ArrowUp': () => other(-1), 'Alt+ArrowDown': () => other(1),
};
const isField = node => /^(INPUT|TEXTAREA|SELECT)$/.test(node.tagName);
addEventListener('keydown', event => {
  if (dialogIsOpen() || event.isComposing) return;
  const mod = mac ? event.metaKey : event.ctrlKey;
  const name = [mod && 'Mod', event.altKey && 'Alt', event.shiftKey && 'Shift', event.key.length === 1 ? event.key.toUpperCase() : event.key].filter(Boolean).join('+');
  if (Object.hasOwn(KEYS, name)) { event.preventDefault(); KEYS[name](); return; }
  if (event.key === 'Escape') { if (covered()) togglePanel(false); else halt(state.chat); return; }
  if (event.key === 'ArrowUp' && event.target === $('input') && !$('input').value && !running.has(state.chat.id)) { event.preventDefault(); editLast(); return; }
  if (mod || event.altKey || isField(event.target)) return;
  if (event.key === '/') { event.preventDefault(); $('input').focus(); }
  if (event.key === '?') { event.preventDefault(); openKeys(); }
});
for (const node of document.querySelectorAll('[data-mod]')) node.textContent = mac ? '⌘' : 'Ctrl';

/* ---- Files of conversations ---- */
$('export').onclick = exportAll;
$('import').onclick = () => $('import-file').click();
$('import-file').onchange = async () => {
  const [file] = $('import-file').files;
  $('panel').close();
  await importFile(file);
  $('import-file').value = '';
};

/* ---- What another window has changed ---- */
addEventListener('storage', event => {
  const name = keyOf(event);
  if (name === 'theme') theme();
  if (name === 'key') connect();
  if (!name?.startsWith('chat.')) return;
  const id = name.slice('chat.'.length);
  if (event.newValue === null) halt({ id });
  // One that is being answered here stays what its stream writes to.
  if (running.has(id)) return;
  reread(id);
  // Only what has changed is drawn: a message may be under edit.
  emit(...id === state.chat.id ? ['shown', {}] : ['chats']);
});
on('shown', () => { $('export').disabled = !state.chats.length; });

resumeLast();
connect();
