// The actions of the status page. The token is typed in once; the browser forgets it with the tab.
"use strict";

const TOKEN = "deliveryd.token";
const SECONDS = { m: 60, h: 3600, d: 86400 };

const dialogs = {
  token: document.getElementById("token-dialog"),
  pause: document.getElementById("pause-dialog"),
  resume: document.getElementById("resume-dialog"),
  retry: document.getElementById("retry-dialog"),
};
const outcome = document.getElementById("outcome");

function report(text, kind) {
  outcome.textContent = text;
  outcome.className = kind;
}

function showSession() {
  const unlocked = sessionStorage.getItem(TOKEN) !== null;
  document.documentElement.classList.toggle("unlocked", unlocked);
  document.getElementById("unlock").hidden = unlocked;
  document.getElementById("lock").hidden = !unlocked;
}

// Orders an action; returns the answer, or null after the reason was shown.
async function order(action, fields, token = sessionStorage.getItem(TOKEN)) {
  let response, answer;
  try {
    response = await fetch(`/actions/${action}`, {
      method: "POST",
      headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" },
      body: JSON.stringify(fields),
      credentials: "omit",
    });
    answer = await response.json();
  } catch {
    report("No answer from the worker: the action may have been carried out or not.", "bad");
    return null;
  }
  if (response.ok) return answer;
  if (response.status === 401) {
    sessionStorage.removeItem(TOKEN);
    showSession();
  }
  report([`Not done: ${answer.error}`, ...(answer.problems ?? [])].join("\n"), "bad");
  return null;
}

// A sentence about what was done, and what wasn't and why.
function told(answer, verb) {
  const done = answer.done ?? [];
  const skipped = Object.entries(answer.skipped ?? {}).map(([key, why]) => `${key}: ${why}`);
  const first = done.length > 3 ? `${done.length} messages ${verb}.` : done.length ? `${verb}: ${done.join(", ")}.` : "";
  report([first, ...skipped.slice(0, 5)].filter(Boolean).join("\n") || "Nothing to do.", skipped.length ? "fair" : "good");
}

function ask(dialog, values = {}) {
  const form = dialog.querySelector("form");
  form.reset();
  for (const [name, value] of Object.entries(values)) form.elements[name].value = value;
  dialog.showModal();
}

function lengthOf(text) {
  if (!text.trim()) return null;
  const match = /^\s*(\d+)\s*([mhd])\s*$/.exec(text);
  return match ? Number(match[1]) * SECONDS[match[2]] : NaN;
}

async function askRetry() {
  const answer = await order("failed", {});
  if (!answer) return;
  const select = dialogs.retry.querySelector("select");
  select.replaceChildren(...answer.reasons.map(({ reason, count }) => {
    const option = document.createElement("option");
    option.value = reason;
    option.textContent = `${count.toLocaleString()} × ${reason}`;
    return option;
  }));
  dialogs.retry.querySelector("output").hidden = answer.complete;
  if (answer.reasons.length) ask(dialogs.retry);
  else if (answer.complete) report("No message has failed.", "good");
  else report("None was found in time: see deliveryd failed list.", "bad");
}

const opened = {
  pause: ({ kind = "settings", key = "" }) => ask(dialogs.pause, { kind, key }),
  resume: ({ kind, key }) => ask(dialogs.resume, { kind, key }),
  retry: askRetry,
  async reload() {
    const answer = await order("reload", {});
    if (answer) report(`Configuration: ${answer.outcome ?? "read again"}.`, "good");
  },
};

const submitted = {
  async token(form) {
    const token = form.elements.token.value.trim();
    form.reset();
    if (!(await order("check", {}, token))) return;
    sessionStorage.setItem(TOKEN, token);
    report("Actions are unlocked until this tab is closed.", "good");
    showSession();
  },
  async pause(form) {
    const { kind, key, lasts, reason } = form.elements;
    const seconds = lengthOf(lasts.value);
    if (Number.isNaN(seconds)) return report("Not done: give the length as 30m, 2h or 1d.", "bad");
    const fields = { kind: kind.value, key: key.value.trim(), seconds, reason: reason.value.trim() };
    const answer = await order("pause", fields);
    if (answer) told(answer, "paused");
  },
  async resume(form) {
    const { kind, key, reason } = form.elements;
    const answer = await order("resume", { kind: kind.value, key: key.value, reason: reason.value.trim() });
    if (answer) told(answer, "resumed");
  },
  async retry(form) {
    const { failure, reason } = form.elements;
    const answer = await order("retry", { failure: failure.value, reason: reason.value.trim() });
    if (answer) told(answer, "begin again");
  },
};

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-action]");
  if (button) opened[button.dataset.action](button.dataset);
});
for (const [name, dialog] of Object.entries(dialogs)) {
  dialog.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    dialog.close();
    submitted[name](event.target);
  });
  dialog.querySelector("[data-cancel]").addEventListener("click", () => dialog.close());
}
document.getElementById("unlock").addEventListener("click", () => ask(dialogs.token));
document.getElementById("lock").addEventListener("click", () => {
  sessionStorage.removeItem(TOKEN);
  report("Actions are locked.", "good");
  showSession();
});
showSession();
