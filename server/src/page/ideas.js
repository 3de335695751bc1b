// What a new conversation may begin with, by the kind of model: one that only continues texts is given beginnings.

const CODE = /cod(e|er|ing|estral|egemma)|starcoder|devstral|deepseek-?coder|santacoder|refact/i, CHAT = /instruct|chat|(^|[^a-z])it([^a-z]|$)|assistant|hermes|dpo|sft/i;
const BASE = /(^|[^a-z])(base|pt|pretrain(ed)?)([^a-z]|$)/i, ONLY_CODE = /starcoder|santacoder|codellama|codegemma/i;

/* 'chat', 'base', 'code', or 'code-base', by a model's name. */
export function kindOf(id) {
  const code = CODE.test(id), base = BASE.test(id) || ONLY_CODE.test(id) && !CHAT.test(id);
  return code ? (base ? 'code-base' : 'code') : base ? 'base' : 'chat';
}
export const IDEAS = {
  chat: ['Tell me a short story.', 'What is the capital of Japan?', 'What is 17 plus 25?'],
  code: ['Write a function that tells whether a word is a palindrome.', 'Explain the regular expression ^\\d{4}-\\d{2}$', 'What is wrong with for (i = 0; i <= list.length; i++)?'],
  base: ['Once upon a time, a miller', 'The capital of Japan is', 'Ingredients: flour, water,'],
  'code-base': ['def is_palindrome(word):', '// The sum of the digits of n\nfunction digitSum(n) {', 'SELECT name, count(*) FROM'],
};
/* What they are, in words. */
export const KINDS = {
  chat: 'This page talks to your own server, and to nobody else.', code: 'This model is trained on code. The page talks to your own server only.',
  base: 'A base model continues texts. Give it a beginning.', 'code-base': 'A base model of code. Give it a beginning to continue.',
};
