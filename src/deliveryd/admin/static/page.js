// Keeps the status page up to date: replaces its regions by what the worker sends, and says when nothing comes.
"use strict";

const SILENCE = 5000; // milliseconds without a message after which the connection counts as lost
const RETRY = 3000; // milliseconds until a connection that was refused is tried again

const link = document.getElementById("link");
let heard = Date.now();
let lostAt = null;

function timeOf(date) {
  return date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

// Instants come in UTC; a reader sees them in the time of their own clock.
function localize(root) {
  for (const each of root.querySelectorAll("time")) {
    const date = new Date(each.dateTime);
    each.title = each.dateTime;
    each.textContent = date.toDateString() === new Date().toDateString() ? timeOf(date) : date.toLocaleString();
  }
}

// Makes the children of one element like those of another, and leaves alone what is the same:
// what has the focus, what is selected and what a screen reader has read stay as they are.
function morph(old, fresh) {
  const before = [...old.childNodes];
  [...fresh.childNodes].forEach((node, index) => {
    const at = before[index];
    if (!at) old.append(node);
    else if (at.nodeName !== node.nodeName) at.replaceWith(node);
    else if (node.nodeType === Node.ELEMENT_NODE) morphElement(at, node);
    else if (at.data !== node.data) at.data = node.data;
  });
  before.slice(fresh.childNodes.length).forEach((node) => node.remove());
}

function morphElement(old, fresh) {
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  morph(old, fresh);
}

function show(regions) {
  for (const [id, content] of Object.entries(regions)) {
    const region = document.getElementById(id);
    if (!region) continue;
    const template = document.createElement("template");
    template.innerHTML = content;
    localize(template.content);
    const fresh = region.cloneNode(false);
    fresh.append(template.content);
    morph(region, fresh);
  }
}

function showLink(text, kind) {
  if (link.textContent !== text) link.textContent = text;
  link.className = kind;
  document.documentElement.classList.toggle("stale", kind === "lost");
}

function lost() {
  lostAt ??= new Date(heard);
  showLink(`Connection lost since ${timeOf(lostAt)}, trying again`, "lost");
}

function connect() {
  const source = new EventSource("/page/stream");
  source.onmessage = (message) => {
    heard = Date.now();
    lostAt = null;
    show(JSON.parse(message.data));
    showLink("live", "live");
  };
  source.onerror = () => {
    lost();
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, RETRY);
  };
}

setInterval(() => { if (Date.now() - heard > SILENCE) lost(); }, 1000);
localize(document);
connect();
