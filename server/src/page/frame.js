// What stands around the conversation: the model, the server's state, the use of the context, the panel's place, light and dark.

import { running } from './answers.js';
import { state } from './chats.js';
import { contextSize } from './context.js';
import { $, count, setIcon } from './dom.js';
import { on } from './events.js';
import { connect, model, server } from './server.js';
import { key, store } from './store.js';

/* ---- The server ---- */
const WORDS = { connecting: 'connecting', up: 'ready', loading: 'loading', locked: 'needs an API key', failed: 'failed', gone: 'no answer' };
const BANNERS = {
  loading: 'The model is being loaded.',
  gone: 'The server does not answer. This page asks again every few seconds.',
};
/* How far what the shown conversation waits for is: the server, or of several models the chosen one. */
function ofChosen() {
  const own = { progress: server.progress, step: server.step, loading: server.status === 'loading', failed: '' };
  const { value, failed, message, done, total } = server.status === 'up' ? model()?.status ?? {} : {};
  if (failed) return { ...own, failed: String(message).replace(/[.]$/, '') };
  if (value !== 'loading') return own;
  return { progress: total > 0 ? Math.min(1, done / total) : null, step: typeof message === 'string' ? message : '', loading: true, failed: '' };
}
/* Whether the answer that is waited for says how far loading is: it is said in one place. */
function isSaid() {
  const phase = running.get(state.chat.id)?.phase;
  return phase?.kind === 'loading' || phase?.kind === 'retry' && phase.loading;
}
function banner() {
  const { status, why, since } = server, { progress, step, failed, ...own } = ofChosen(), loading = own.loading && !isSaid();
  const locked = key() ? 'The server does not accept this API key.' : 'The server needs an API key.';
  const text = status === 'locked' ? locked : status === 'failed' ? `The server cannot run its model any more: ${why}. It has to be started again.` : failed ? `${model().id} cannot be loaded: ${failed}. Choose another model above; the others are not affected.` : loading ? BANNERS.loading : status === 'loading' ? '' : BANNERS[status] ?? '';
  $('banner').hidden = !text;
  $('banner').className = loading ? 'banner calm' : 'banner';
  // A live region tells what is new in it: the same is not told again.
  if ($('banner-text').textContent !== text) $('banner-text').textContent = text;
  $('unlock').hidden = status !== 'locked';
  $('ask-again').hidden = status !== 'gone';
  $('loading').hidden = !loading;
  if (progress === null) $('loading').removeAttribute('value'); else $('loading').value = progress;
  const seconds = Math.round((Date.now() - since) / 1000);
  $('elapsed').hidden = !loading || status === 'loading' && seconds < 1;
  $('elapsed').textContent = [step, progress !== null && `${Math.round(progress * 100)} %`, status === 'loading' && `${count(seconds)} s`].filter(Boolean).join(', ');
}
/* Of several models the server is ready for one that is not there too. */
function word() {
  const chosen = server.status === 'up' && server.models.length > 1 && !model()?.status.failed && model()?.status.value;
  return { unloaded: 'loads when asked', loading: WORDS.loading }[chosen] ?? WORDS[server.status];
}
function status() {
  $('state').className = server.status;
  $('state').textContent = word();
  banner();
  usage();
}
on('server', status);
setInterval(() => { if (server.status === 'loading') banner(); }, 1000);
$('ask-again').onclick = () => connect();

/* ---- The context ---- */
const NARROW = 0.9;
function usage() {
  const { used, whole } = contextSize();
  $('usage').hidden = !whole || server.status !== 'up';
  if (!whole) return;
  const part = Math.min(1, used / whole), tight = part >= NARROW, over = used > whole;
  $('usage').classList.toggle('tight', tight);
  $('usage').title = over ? 'This does not fit the context: shorten it, or begin a new conversation' : tight ? 'The context is nearly full: begin a new conversation, or edit an earlier message' : 'Tokens of the context that this conversation takes, with what is written next';
  $('usage-text').textContent = used ? `${count(used)} of ${count(whole)} tokens` : `${count(whole)} tokens of context`;
  $('usage-bar').hidden = !used;
  $('usage-bar').value = part;
}
on('shown', () => { usage(); banner(); $('state').textContent = word(); });
on('counted', usage);
on('answer', () => { usage(); banner(); });

/* ---- The panel ---- */
const small = matchMedia('(max-width: 760px)');
export const covered = () => small.matches && !document.body.classList.contains('narrow');
function narrow(on) {
  document.body.classList.toggle('narrow', on);
  $('show').hidden = !on;
  // On a small screen the panel lies over the conversation.
  document.querySelector('main').inert = covered();
}
export function togglePanel(open = document.body.classList.contains('narrow')) {
  narrow(!open);
  $(open ? 'hide' : 'show').focus();
}
small.addEventListener('change', () => narrow(small.matches));
$('hide').onclick = $('shade').onclick = () => togglePanel(false);
$('show').onclick = () => togglePanel(true);
on('shown', ({ other }) => { if (other && small.matches) narrow(true); });

/* ---- Light and dark ---- */
const dark = matchMedia('(prefers-color-scheme: dark)');
export function theme() {
  const on = (store.get('theme', null) ?? (dark.matches ? 'dark' : 'light')) === 'dark';
  document.documentElement.dataset.theme = on ? 'dark' : 'light';
  setIcon($('theme'), on ? 'sun' : 'moon');
}
dark.addEventListener('change', theme);
$('theme').onclick = () => {
  const next = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  // Back to what the system says is back to following it.
  if ((next === 'dark') === dark.matches) store.remove('theme'); else store.set('theme', next);
  theme();
};
theme();
narrow(small.matches);
