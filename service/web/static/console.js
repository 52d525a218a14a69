// Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
// What pages gain with a script: live updates with a pause, local times, copying, and keys. None is needed.
"use strict";
(() => {
  const root = document.documentElement.dataset.root || "";
  const status = document.getElementById("pulse");
  const dot = document.getElementById("dot");
  const pause = document.getElementById("pause");
  const units = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
  const ago = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });

  function relative(at) {
    const seconds = (at - Date.now()) / 1000;
    const [unit, size] = units.find(([, size]) => Math.abs(seconds) >= size) || units[3];
    return ago.format(Math.round(seconds / size), unit);
  }

  function times(within) {
    for (const time of within.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      time.title = `${at.toLocaleString()} here, ${relative(at)}`;
    }
  }

  // ------------------------------------------------------------ live

  let isPaused = new URLSearchParams(location.search).get("paused") === "1";
  let source = null, isLoading = false, isStale = false, lastRead = "";

  function tell(text, isLive) {
    if (status && status.textContent !== text) status.textContent = text;
    if (dot) dot.classList.toggle("on", isLive);
  }

  function isBusy() {  // nobody loses what they are typing, or the text they are selecting
    const at = document.activeElement;
    const types = at && at.closest("[data-live] input, [data-live] textarea, [data-live] select");
    const form = [...document.querySelectorAll("[data-live] textarea, [data-live] form[method=post] input[type=text]")];
    return Boolean(types) || form.some((field) => field.value !== field.defaultValue) || !getSelection().isCollapsed;
  }

  // The parser of XMLHttpRequest runs no script and needs no innerHTML, which the page's policy forbids.
  function look() {
    if (isPaused || document.hidden) { isStale = true; return; }
    if (isLoading) { isStale = true; return; }
    if (isBusy()) { isStale = true; tell("changed; shown when you are done here", true); return; }
    isLoading = true; isStale = false;
    const ask = new XMLHttpRequest();
    ask.open("GET", location.href);
    ask.responseType = "document";
    ask.setRequestHeader("Accept", "text/html");
    ask.onloadend = () => {
      isLoading = false;
      if (ask.status !== 200 || !ask.response) { tell("could not look again", false); return; }
      if (ask.responseURL.includes("/login")) { location.reload(); return; }
      replace(ask.response);
      lastRead = new Date().toLocaleTimeString();
      tell(`live, changed ${lastRead}`, true);
      if (isStale) setTimeout(look, 1000);
    };
    ask.send();
  }

  function replace(fresh) {
    for (const old of document.querySelectorAll("[data-live]")) {
      const next = fresh.getElementById(old.id);
      if (!next || next.outerHTML === old.outerHTML) continue;
      const focus = document.activeElement && old.contains(document.activeElement) ? trail(document.activeElement, old) : null;
      const open = new Set([...old.querySelectorAll("details[open][id]")].map((one) => one.id));
      const adopted = document.adoptNode(next);
      for (const one of adopted.querySelectorAll("details[id]")) one.open = open.has(one.id);
      times(adopted);
      old.replaceWith(adopted);
      if (focus) find(adopted, focus)?.focus({ preventScroll: true });
      document.dispatchEvent(new CustomEvent("relight:replaced", { detail: adopted }));
    }
  }

  function trail(element, top) {
    const key = element.id || element.getAttribute("href") || "";
    const same = [...top.querySelectorAll(element.tagName)].filter((one) => (one.id || one.getAttribute("href") || "") === key);
    return { tag: element.tagName, key, at: same.indexOf(element) };
  }

  function find(top, { tag, key, at }) {
    return [...top.querySelectorAll(tag)].filter((one) => (one.id || one.getAttribute("href") || "") === key)[at];
  }

  function listen() {
    if (source || isPaused) return;
    source = new EventSource(`${root}/live?since=${document.documentElement.dataset.position || ""}`);
    source.addEventListener("changed", look);
    source.onopen = () => tell(lastRead ? `live, changed ${lastRead}` : "live", true);
    source.onerror = () => {
      const broken = source;
      setTimeout(() => { if (broken && source === broken && broken.readyState !== 1) tell("connection lost, trying again", false); }, 4000);
    };
  }

  function setPaused(wanted) {
    isPaused = wanted;
    const address = new URL(location.href);
    if (wanted) address.searchParams.set("paused", "1"); else address.searchParams.delete("paused");
    history.replaceState(null, "", address);
    pause.setAttribute("aria-pressed", String(wanted));
    if (wanted) { source?.close(); source = null; tell("paused", false); } else { tell("live", true); listen(); look(); }
  }

  if (pause && window.EventSource) {
    pause.hidden = false;
    pause.addEventListener("click", () => setPaused(!isPaused));
    document.addEventListener("visibilitychange", () => { if (!document.hidden && isStale) look(); });
    document.addEventListener("focusout", () => setTimeout(() => { if (isStale && !isBusy()) look(); }, 200));
    if (isPaused) { pause.setAttribute("aria-pressed", "true"); tell("paused", false); } else listen();
  }

  // ------------------------------------------------------------ copying

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button || !navigator.clipboard) return;
    event.preventDefault();
    const answer = await fetch(button.href, { headers: { Accept: "text/markdown" } });
    await navigator.clipboard.writeText(await answer.text());
    const told = document.getElementById("copied");
    if (told) told.textContent = "Copied as Markdown.";
  });

  // ------------------------------------------------------------ keys

  const help = document.getElementById("keys");
  const areOn = () => localStorage.getItem("relight-keys") !== "off";
  const places = { f: "fleet", i: "incidents", g: "goodput", n: "nodes", r: "rules", s: "shadow", p: "promotion", q: "silences", a: "audit" };
  let isAfterG = false;

  function move(by) {
    const rows = [...document.querySelectorAll("[data-row]")];
    if (!rows.length) return;
    const at = rows.findIndex((row) => row.contains(document.activeElement));
    const next = rows[Math.min(Math.max(at + by, 0), rows.length - 1)];
    rows.forEach((row) => row.classList.toggle("chosen", row === next));
    next.querySelector("a")?.focus();
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !areOn()) return;
    if (event.target.closest("input, textarea, select, dialog")) return;
    const key = event.key;
    if (isAfterG && places[key]) { location.href = `${root}/${places[key]}`; isAfterG = false; return; }
    isAfterG = key === "g";
    const does = {
      "?": () => help?.showModal(),
      j: () => move(1),
      k: () => move(-1),
      p: () => pause && setPaused(!isPaused),
      "/": () => document.querySelector("form.filters input, form.filters select")?.focus(),
      y: () => document.querySelector("[data-approve]")?.focus(),
    }[key];
    if (does) { event.preventDefault(); does(); }
  });

  document.getElementById("help")?.addEventListener("click", () => help?.showModal());
  const toggle = document.getElementById("keys-on");
  if (toggle) {
    toggle.checked = areOn();
    toggle.addEventListener("change", () => localStorage.setItem("relight-keys", toggle.checked ? "on" : "off"));
  }
  times(document);
})();
