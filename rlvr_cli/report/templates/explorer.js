// The page as an explorer: arms on and off, values under the pointer, completions to search. Every text of a run is set
// as text, never as markup. Without this script the page shows all it has.
"use strict";
(() => {
  const one = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const SVG = "http://www.w3.org/2000/svg";

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  async function unpack(id) {
    const text = one(`#${id}`)?.textContent.trim();
    if (!text || !("DecompressionStream" in window)) return null;
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  // Arms: a box each; what belongs to an arm that is off is hidden on the screen, not on paper.

  const off = new Set();
  const changed = [];
  const boxes = all("#arms input");

  function showArms() {
    off.clear();
    for (const box of boxes) if (!box.checked) off.add(Number(box.value));
    for (const element of all("[data-arm]")) element.toggleAttribute("data-off", off.has(Number(element.dataset.arm)));
    one("#arms-shown").textContent = `${boxes.length - off.size} of ${boxes.length} arms shown`;
    for (const react of changed) react();
  }

  function setUpArms() {
    if (!boxes.length) return;
    for (const hidden of all("#arms [hidden]")) hidden.hidden = false;
    one("#arms details").open = boxes.length < 9 && window.innerWidth > 640;
    for (const box of boxes) box.addEventListener("change", showArms);
    for (const button of all("#arms button")) {
      button.addEventListener("click", () => {
        for (const box of boxes) box.checked = button.value === "all";
        showArms();
      });
    }
    // Boxes keep their state over a reload in some browsers.
    showArms();
  }

  // Values: a slider over each picture, for pointers and for arrow keys; what it says is read aloud.

  // Of a panel's numbers below it, and between it and the values above, in the units of a picture.
  const TICKS = 24, GAP = 6;
  // Lines whose values are listed at a time: those nearest to the pointer, of keys those with the greatest values.
  const MOST = 8;

  function setUpPanel(plot, title, panel) {
    const svg = one("svg", plot), [, top, , bottom] = panel.frame;
    const [, , wide, tall] = svg.getAttribute("viewBox").split(" ").map(Number);
    const marks = document.createElementNS(SVG, "g");
    const tip = make("div", { class: "tip", "aria-hidden": "true" });
    const probe = make("div", {
      class: "probe", role: "slider", tabindex: "0", "aria-valuemin": "1",
      "aria-label": `Values of ${title}${panel.title ? `, ${panel.title}` : ""}`,
    });
    let lines = [], places = [], at = -1;
    svg.append(marks);
    plot.append(probe, tip);

    function findPlaces() {
      lines = panel.lines.filter((line) => !off.has(line.arm));
      places = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
      probe.setAttribute("aria-valuemax", String(Math.max(1, places.length)));
      show(-1);
    }

    function nearest(line, x) {
      let best = 0;
      line.x.forEach((other, place) => { if (Math.abs(other - x) < Math.abs(line.x[best] - x)) best = place; });
      const step = line.x.length > 1 ? (line.x.at(-1) - line.x[0]) / (line.x.length - 1) : 0;
      return Math.abs(line.x[best] - x) <= Math.max(1, step / 2) ? best : -1;
    }

    function draw(tag, attributes) {
      const element = document.createElementNS(SVG, tag);
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
      marks.append(element);
    }

    function show(place, y = 0) {
      at = place;
      marks.replaceChildren();
      tip.replaceChildren();
      tip.hidden = !(at in places);
      if (tip.hidden) {
        probe.setAttribute("aria-valuenow", "1");
        probe.setAttribute("aria-valuetext", "press an arrow key to read values");
        return;
      }
      const x = places[at];
      const found = lines.map((line) => [line, nearest(line, x)]).filter(([, best]) => best >= 0);
      const near = [...found].sort(([a, i], [b, j]) => Math.abs(a.y[i] - y) - Math.abs(b.y[j] - y)).slice(0, MOST);
      const [first, exact] = found.find(([line, best]) => line.x[best] === x);
      const head = `${panel.title ? `${panel.title}, ` : ""}${first.at[exact]} ${panel.axis}`;
      draw("line", { x1: x, x2: x, y1: top, y2: bottom, class: "rule" });
      tip.append(make("b", {}, head));
      const said = [];
      for (const [line, best] of found.filter((one) => near.includes(one))) {
        const colour = `--at: var(--c${line.arm})`;
        draw("circle", { cx: line.x[best], cy: line.y[best], r: 4, class: "dot", style: colour });
        const other = line.at[best] === first.at[exact] ? "" : ` at ${line.at[best]}`;
        const value = `${line.values[best]}${other}`;
        tip.append(make("span", { style: colour }, boxes.length > 1 ? `${line.name}: ` : "", make("i", {}, value)));
        said.push(boxes.length > 1 ? `${line.name} ${value}` : value);
      }
      if (near.length < found.length) {
        said.push(`${found.length - near.length} more`);
        tip.append(`${said.at(-1)}, further away`);
      }
      probe.setAttribute("aria-valuenow", String(at + 1));
      probe.setAttribute("aria-valuetext", `${head}: ${said.join("; ")}`);
      // Below the panel, so that it hides no line; above it where the window ends.
      const scale = plot.clientWidth / wide, room = plot.clientWidth - tip.offsetWidth;
      tip.style.left = `${Math.max(0, Math.min(room, x * scale - tip.offsetWidth / 2))}px`;
      tip.style.top = `${(bottom + TICKS) * scale}px`;
      const ends = tip.getBoundingClientRect();
      if (ends.bottom > window.innerHeight && plot.getBoundingClientRect().top > ends.height) {
        tip.style.top = `${(top - GAP) * scale - ends.height}px`;
      }
    }

    function point(event) {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) * wide) / box.width, y = ((event.clientY - box.top) * tall) / box.height;
      let best = -1;
      places.forEach((place, here) => { if (best < 0 || Math.abs(place - x) < Math.abs(places[best] - x)) best = here; });
      if (best !== at || lines.length > MOST) show(best, y);
    }

    probe.addEventListener("pointermove", point);
    probe.addEventListener("pointerdown", point);
    probe.addEventListener("pointerleave", () => show(-1));
    probe.addEventListener("blur", () => show(-1));
    probe.addEventListener("keydown", (event) => {
      const last = places.length - 1, jump = Math.max(1, Math.round(places.length / 10));
      const moves = {
        ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: Math.max(0, at - 1), ArrowDown: Math.max(0, at - 1),
        PageUp: at + jump, PageDown: Math.max(0, at - jump), Home: 0, End: last, Escape: -1,
      };
      if (!(event.key in moves) || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      show(Math.min(last, moves[event.key]));
    });
    changed.push(findPlaces);
    findPlaces();
  }

  // Completions: columns of all evaluations; a page of them at a time.

  const PAGE = 10;

  function setUpCompletions(data) {
    const form = one("#browse"), list = one("#found"), told = one("#browse-count"), more = one("#browse-more");
    const { arms, sources, problems, rows } = data;
    const lower = rows.text.map((text, row) =>
      `${problems[rows.problem[row]][0]}\n${rows.answer[row] ?? ""}\n${text}`.toLowerCase());
    let found = [], shown = 0;

    function fill(name, first, values) {
      const counts = new Map();
      for (const value of values) {
        for (const whole of new Set([value, name === "verdict" ? value.split(": ")[0] : value])) {
          counts.set(whole, (counts.get(whole) ?? 0) + 1);
        }
      }
      const names = [...counts.keys()].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
      const options = names.map((value) => make("option", { value }, `${value} (${counts.get(value).toLocaleString("en")})`));
      const select = form.elements[name];
      select.replaceChildren(make("option", { value: "" }, first), ...options);
      select.closest("label").hidden = names.length < 2;
    }

    const armOf = (row) => sources[rows.source[row]].arm === null ? "before training" : arms[sources[rows.source[row]].arm];
    const verdictOf = (row) => {
      const word = rows.right[row] ? "right" : "wrong", reason = rows.reason[row];
      return ["correct", "wrong"].includes(reason) ? word : `${word}: ${reason}`;
    };
    // `wrong` is every wrong one, whatever the reason.
    const is = (own, value) => own === value || own.startsWith(`${value}: `);
    const values = {
      verdict: rows.text.map((_, row) => verdictOf(row)),
      subgroup: rows.problem.map((problem) => problems[problem][1]),
      arm: rows.text.map((_, row) => armOf(row)),
      evaluation: rows.source.map((source) => sources[source].of),
    };
    fill("verdict", "all", values.verdict);
    fill("subgroup", "all", values.subgroup);
    fill("arm", "all that are shown", values.arm);
    fill("evaluation", "all", values.evaluation);

    function marked(text, wanted) {
      const parts = [], low = text.toLowerCase();
      let from = 0;
      // Where lower case has another length, places would not fit.
      for (let at = wanted && low.length === text.length ? low.indexOf(wanted) : -1; at >= 0; at = low.indexOf(wanted, from)) {
        parts.push(text.slice(from, at), make("mark", {}, text.slice(at, at + wanted.length)));
        from = at + wanted.length;
      }
      return [...parts, text.slice(from)];
    }

    function item(row, wanted) {
      const source = sources[rows.source[row]], [problem, subgroup] = problems[rows.problem[row]];
      const same = make("button", { type: "button" }, "same problem");
      same.addEventListener("click", () => {
        form.reset();
        form.elements.search.value = problem;
        search();
        form.elements.search.focus();
      });
      const about = [
        `${armOf(row)}${source.run === armOf(row) ? "" : `, ${source.run}`}`, source.of, `${problem} (${subgroup})`,
        rows.sample[row] === "greedy" ? "greedy" : `sample ${rows.sample[row]}`,
        rows.tokens[row] === null ? "" : `${rows.tokens[row]} tokens${rows.cut[row] ? ", cut at the limit" : ""}`,
        rows.reward[row] === null ? "" : `reward ${Number(rows.reward[row].toPrecision(3))}`,
      ];
      const answer = rows.answer[row] === null ? ["no answer"] : ["answer ", make("bdi", {}, ...marked(rows.answer[row], wanted))];
      return make("li", {},
        make("p", { class: rows.right[row] ? "verdict right" : "verdict" }, make("b", {}, values.verdict[row]), ", ", ...answer),
        make("pre", { tabindex: "0", dir: "auto", "aria-label": "completion" }, ...marked(rows.text[row], wanted)),
        make("p", { class: "note" }, `${about.filter(Boolean).join(" · ")} `, same));
    }

    function page() {
      const wanted = form.elements.search.value.trim().toLowerCase();
      list.append(...found.slice(shown, shown + PAGE).map((row) => item(row, wanted)));
      shown = Math.min(found.length, shown + PAGE);
      more.hidden = shown >= found.length;
      const right = found.reduce((sum, row) => sum + rows.right[row], 0);
      const share = found.length ? `, ${((100 * right) / found.length).toFixed(1)}% right` : "";
      told.textContent = `${found.length.toLocaleString("en")} of ${rows.text.length.toLocaleString("en")} completions`
        + `${share}${found.length > shown ? `; the first ${shown} are shown` : ""}`;
    }

    function search() {
      const wanted = form.elements.search.value.trim().toLowerCase();
      const chosen = Object.keys(values).map((name) => [values[name], form.elements[name].value, name])
        .filter(([, value]) => value);
      const hidden = (row) => !form.elements.arm.value && off.has(sources[rows.source[row]].arm);
      found = [];
      for (let row = 0; row < lower.length; row += 1) {
        const fits = ([column, value, name]) => (name === "verdict" ? is(column[row], value) : column[row] === value);
        if (chosen.every(fits) && !hidden(row) && lower[row].includes(wanted)) found.push(row);
      }
      shown = 0;
      list.replaceChildren();
      page();
    }

    let waiting;
    form.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(search, 120); });
    form.addEventListener("submit", (event) => { event.preventDefault(); search(); });
    form.addEventListener("reset", () => setTimeout(search));
    more.addEventListener("click", page);
    changed.push(search);
    search();
    one("#explore").hidden = false;
  }

  async function start() {
    setUpArms();
    const charts = await unpack("data-charts");
    for (const [key, panels] of Object.entries(charts ?? {})) {
      const figure = one(`#figure-${key}`), title = one("h3", figure).textContent;
      all(".plot", figure).forEach((plot, number) => setUpPanel(plot, title, panels[number]));
    }
    const completions = await unpack("data-completions");
    if (completions) setUpCompletions(completions);
    document.documentElement.dataset.ready = "yes";
  }
  start();
})();
