// What pages of django-rmq-retry do besides links and forms: refresh a part, tabs, copying, keys. All of it can be missing.
"use strict";
(() => {
  const $ = (what, where = document) => where.querySelector(what);
  const $$ = (what, where = document) => [...where.querySelectorAll(what)];
  const pulse = $("[data-rmq-pulse]");
  const live = $("[data-rmq-live]");
  // Longer than a page waits for its database, which then says so itself.
  const PATIENCE = 8000;
  // An answer that the database is away comes after seconds by itself.
  const LONGEST = { textStale: 60000, textDatabase: 3000 };
  let paused = false, missed = 0, timer = 0, shown = "", seen = pulse ? pulse.dataset.rmqPulse : "";

  const say = (text) => { if (pulse && $("[data-rmq-said]", pulse).textContent !== text) $("[data-rmq-said]", pulse).textContent = text; };
  const over = () => Boolean(live && $("[data-rmq-over]", live));
  const usual = () => (live ? Number(live.dataset.rmqEvery) : 5) * 1000;

  function later(after) {
    clearTimeout(timer);
    if (!paused && !document.hidden && live && !over()) timer = setTimeout(refresh, after);
  }

  async function refresh() {
    const inside = live.contains(document.activeElement) && document.activeElement.matches("input, select, textarea");
    if (inside || $("dialog[open]")) return later(usual());
    const sending = $("[data-rmq-send]", live);
    const address = new URL(sending ? sending.dataset.rmqSend : live.dataset.rmqLive, location.href);
    address.searchParams.set("fragment", "1");
    const asked = { signal: AbortSignal.timeout(PATIENCE), credentials: "same-origin", headers: { "X-Requested-With": "XMLHttpRequest" } };
    if (sending) {
      const token = $("[name=csrfmiddlewaretoken]");
      Object.assign(asked, { method: "POST", headers: { ...asked.headers, "X-CSRFToken": token ? token.value : "" } });
    }
    let stale = "textStale";
    try {
      const answer = await fetch(address, asked);
      if (answer.headers.get("Rmq-Away") === "database") stale = "textDatabase";
      if (answer.redirected || answer.status === 401 || answer.status === 403) { paused = true; return say(pulse ? pulse.dataset.textSignedOut : ""); }
      if (!answer.ok) throw new Error(String(answer.status));
      const text = await answer.text();
      if (paused) return;
      swap(text);
      missed = 0;
      seen = answer.headers.get("Rmq-Clock") || seen;
      old(false);
      away(false);
      if (pulse) { pulse.hidden = over(); say(pulse.dataset.textEvery); }
      later(sending ? 100 : usual());
    } catch {
      missed += 1;
      old(true);
      if (pulse) { pulse.hidden = false; say(pulse.dataset[stale].replace("TIME", seen)); }
      away(stale === "textDatabase");
      later(Math.min(usual() * 2 ** missed, LONGEST[stale]));
    }
  }

  /** Show that what stands here is not of now: nothing on it is fine any more. */
  function old(is) {
    for (const one of [live, pulse]) if (one) one.classList.toggle("rmq-stale", is);
  }

  /** Say at the head of a page what goes on without this server while it does not reach the database. */
  function away(is) {
    const note = $("[data-rmq-away]");
    if (!note) return;
    note.hidden = !is;
    if (is) note.textContent = note.dataset.rmqAway.replace("TIME", seen);
  }

  function swap(text) {
    if (text === shown) return;
    shown = text;
    const open = new Map(folds().map(([name, one]) => [name, one.open]));
    const ticked = $$("input:checked", live).map((one) => one.value);
    const focused = document.activeElement, place = $$("a, button, summary", live).indexOf(focused);
    const fresh = new DOMParser().parseFromString(text, "text/html");
    live.replaceChildren(...fresh.body.childNodes);
    for (const [name, one] of folds()) if (open.has(name)) one.open = open.get(name);
    $$("input[type=checkbox]", live).forEach((one) => { one.checked = ticked.includes(one.value); });
    count();
    const again = place >= 0 && $$("a, button, summary", live)[place];
    if (again && again.textContent === focused.textContent) again.focus({ preventScroll: true });
    ready(live);
  }

  /** Each fold by what it is: others may have come or gone above it, and its line counts. */
  function folds() {
    const met = new Map();
    return $$("details", live).map((one) => {
      const row = one.closest("tr"), head = row && ($("th", row) || $("th", row.parentNode));
      const line = one.dataset.rmqFold || $("summary", one).textContent.replace(/\d+/g, "");
      const name = `${head ? head.textContent : ""} ${line}`;
      met.set(name, (met.get(name) || 0) + 1);
      return [`${name} ${met.get(name)}`, one];
    });
  }

  function count() {
    const said = $("[data-rmq-ticked]"), ticked = $$("input[data-rmq-count]:checked");
    if (!said) return;
    const number = (one) => one.toLocaleString(document.documentElement.lang);
    const messages = ticked.reduce((sum, one) => sum + Number(one.dataset.rmqCount), 0);
    const text = said.dataset.text.replace("{groups}", number(ticked.length)).replace("{messages}", number(messages));
    said.textContent = ticked.length ? text : "";
  }

  function ready(where) {
    for (const button of $$("[data-rmq-copy]", where)) {
      button.hidden = !navigator.clipboard;
      button.addEventListener("click", async () => {
        const label = button.textContent;
        await navigator.clipboard.writeText($("[data-rmq-text]", button.closest(".rmq-copying")).textContent);
        button.textContent = button.dataset.textDone;
        setTimeout(() => { button.textContent = label; }, 2000);
      });
    }
  }

  function tabs(box) {
    const bar = $(".rmq-tabbar", box), links = $$("a", bar);
    const panels = links.map((link) => $(link.getAttribute("href"), box));
    const choose = (number, focus) => links.forEach((link, place) => {
      const chosen = place === number;
      link.setAttribute("aria-selected", String(chosen));
      link.tabIndex = chosen ? 0 : -1;
      panels[place].hidden = !chosen;
      if (chosen && focus) link.focus();
    });
    const row = document.createElement("div");
    row.className = bar.className;
    row.setAttribute("role", "tablist");
    row.setAttribute("aria-label", bar.getAttribute("aria-label"));
    row.append(...links);
    bar.replaceWith(row);
    links.forEach((link, number) => {
      link.id = `${panels[number].id}-tab`;
      link.setAttribute("role", "tab");
      link.setAttribute("aria-controls", panels[number].id);
      panels[number].setAttribute("role", "tabpanel");
      panels[number].setAttribute("aria-labelledby", link.id);
      link.addEventListener("click", (event) => { event.preventDefault(); choose(number); history.replaceState(null, "", link.hash); });
      link.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (step) choose((number + step + links.length) % links.length, true);
      });
    });
    choose(Math.max(0, links.findIndex((link) => link.hash === location.hash)));
  }

  function keys(dialog) {
    const box = $("[data-rmq-keys-on]", dialog), addresses = $("[data-rmq-help]").dataset;
    let before = "", here = -1;
    box.checked = localStorage.getItem("rmq-keys") !== "off";
    box.addEventListener("change", () => localStorage.setItem("rmq-keys", box.checked ? "on" : "off"));
    const rows = () => $$("[data-rmq-row], #result_list tbody tr");
    const move = (step) => {
      const all = rows();
      here = Math.min(Math.max(here + step, 0), all.length - 1);
      all.forEach((row, number) => row.classList.toggle("rmq-here", number === here));
      if (all[here]) { all[here].scrollIntoView({ block: "nearest" }); const link = $("a", all[here]); if (link) link.focus(); }
    };
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog, [contenteditable]")) return;
      if (event.key === "?") { dialog.showModal(); return; }
      if (!box.checked) return;
      const row = rows()[here], goal = { s: addresses.addressS, g: addresses.addressG, p: addresses.addressP }[event.key];
      if (before === "g" && goal) { location.assign(goal); return; }
      before = event.key;
      const search = $("[data-rmq-search], #searchbar"), tick = row && $("input[type=checkbox]", row), link = row && $("a", row);
      if (event.key === "/" && search) { event.preventDefault(); search.focus(); }
      else if (event.key === "j") move(1);
      else if (event.key === "k") move(-1);
      else if (event.key === "x" && tick) tick.click();
      else if (event.key === "o" && link) location.assign(link.href);
    });
  }

  // The checks are those of the chosen queue: they are loaded as soon as another one is chosen.
  $$("select[data-rmq-checks]").forEach((select) => {
    select.addEventListener("change", () => select.form.requestSubmit($("button[name=refresh]", select.form)));
  });
  const phone = matchMedia("(max-width: 640px)");
  const fold = () => $$(".rmq-unfolded").forEach((one) => { one.open = !phone.matches; });
  phone.addEventListener("change", fold);
  fold();
  ready(document);
  document.addEventListener("change", count);
  count();
  $$("[data-rmq-tabs]").forEach(tabs);
  $$("dialog[data-rmq-keys]").forEach(keys);
  const wrong = $("#rmq-wrong");
  if (wrong) wrong.focus();
  if (live && pulse) {
    const button = $("[data-rmq-pause]", pulse);
    pulse.hidden = false;
    say(pulse.dataset.textEvery);
    button.addEventListener("click", () => {
      paused = !paused;
      button.textContent = paused ? button.dataset.textResume : button.dataset.textPause;
      say(paused ? pulse.dataset.textPaused : pulse.dataset.textEvery);
      if (!paused) refresh();
    });
  }
  if (live) {
    document.addEventListener("visibilitychange", () => later(0));
    later($("[data-rmq-send]", live) ? 0 : usual());
  }
})();
