"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

// Elements: text is never taken for markup.
function make(tag, attributes = {}, ...children) {
  const svg = ["g", "rect", "line", "text", "circle", "path", "title", "clipPath", "defs"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

// Numbers for people.
function time(s) {
  const a = Math.abs(s);
  return a >= 1 ? s.toFixed(2) + " s" : a >= 1e-3 ? (s * 1e3).toFixed(2) + " ms" : (s * 1e6).toFixed(1) + " µs";
}
const percent = (x, digits = 1) => (100 * x).toFixed(digits) + " %";
const mega = (bytes) => (bytes / 1e6).toFixed(2);
const giga = (rate) => (rate / 1e9).toFixed(2);
function power(x) {
  for (const [unit, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (x >= size) return (x / size).toPrecision(3) + " " + unit;
  }
  return x.toPrecision(3) + " ";
}

// Text of a kernel, its blocks set in.
function indented(text) {
  let depth = 0;
  return text.split("\n").map((line) => {
    const inner = line.trim();
    const shut = inner.startsWith("}") ? 1 : 0;
    const out = "  ".repeat(Math.max(depth - shut, 0)) + inner;
    for (const c of inner) depth += c === "{" ? 1 : c === "}" ? -1 : 0;
    return out;
  }).join("\n");
}
