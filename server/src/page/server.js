// What is known of the server: whether it answers, which models it has.
// `status`: 'connecting', 'up', 'loading' (`progress` from 0 to 1 and `step`, where it says so), 'locked' (it wants a key, or another one),
// 'failed' (`why`: its engine is gone for good), 'gone'.

import { health, models } from './api.js';
import { save, state } from './chats.js';
import { emit } from './events.js';
import { store } from './store.js';

export const server = { status: 'connecting', models: [], progress: null, step: '', why: '', since: Date.now() };

/* Milliseconds between questions while it does not answer, and while it loads. */
const AWAY = 4000, LOADING = 1000;

function set(status, more = {}) {
  if (status !== server.status) server.since = Date.now();
  Object.assign(server, { status, progress: null, step: '', why: '' }, more);
  emit('server');
}
/* The model that the shown conversation is answered by. */
export function model() {
  const find = id => server.models.find(one => one.id === id);
  return find(state.chat?.model) ?? find(store.get('model', null)) ?? server.models[0] ?? null;
}
/* For this conversation, and for new ones. */
export function chooseModel(id) {
  state.chat.model = id;
  if (state.chat.messages.length) save(state.chat, false);
  store.set('model', id);
  emit('server');
}
/* What a refusal or a silence says of the server. */
export function learn(fault) {
  if (fault.status === 401) set('locked');
  else if (fault.code === 'model_loading') set('loading', { progress: server.progress, step: server.step });
  else if (fault.code === 'engine_failed') set('failed', { why: fault.message });
  else if (fault.kind === 'gone') set('gone');
  // It may be there again already.
  else if (fault.kind === 'broken') connect();
}
/* Of several models, which are loaded changes with what is asked. */
export async function refresh() {
  if (server.status !== 'up' || server.models.length < 2) return;
  try { server.models = await models(); } catch { return; }
  emit('server');
}
export const well = () => { if (server.status !== 'up') connect(); };

/* Asks the server how it is. */
export async function connect() {
  try {
    const list = await models();
    server.models = list;
    set('up');
  } catch (fault) {
    if (fault.code !== 'model_loading') { if (fault.kind === 'refused') learn(fault); else set('gone'); return; }
    const { status, message, done, total } = await health();
    if (status === 'ok') return connect();
    set('loading', { progress: total > 0 ? Math.min(1, Math.max(0, done / total)) : null, step: typeof message === 'string' ? message : '' });
  }
}
let last = 0;
setInterval(() => {
  if (document.visibilityState === 'visible' && model()?.status.value === 'loading' && Date.now() - last >= LOADING) { last = Date.now(); refresh(); }
  const due = server.status === 'loading' ? LOADING : AWAY;
  if (document.visibilityState !== 'visible' || ['up', 'connecting'].includes(server.status) || Date.now() - last < due) return;
  last = Date.now();
  connect();
}, 500);
