// What has changed, told to whoever draws it. So that what is known does not depend on what shows it:
//   'chats'    the list of conversations
//   'shown'    another conversation is shown, or the shown one has other messages
//   'answer'   an answer has grown or ended; its run
//   'draft'    what is written, and not sent yet
//   'counted'  the tokens of the conversation
//   'server'   the server's state, its models, or the chosen one

const listeners = new Map();

export function on(name, listener) {
  if (!listeners.has(name)) listeners.set(name, []);
  listeners.get(name).push(listener);
}
export function emit(name, fact) {
  for (const listener of listeners.get(name) ?? []) listener(fact);
}
