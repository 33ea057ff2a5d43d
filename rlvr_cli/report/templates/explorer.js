// Explorer of a report: toggle arms, read values, search completions. Text of runs is untrusted: it is set as text, never
// as markup. The page is complete without this script.
"use strict";
(() => {
  const select = (selector, root = document) => root.querySelector(selector);
  const selectAll = (selector, root = document) => [...root.querySelectorAll(selector)];
  const SVG = "http://www.w3.org/2000/svg";

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  async function unpack(id) {
    const text = select(`#${id}`)?.textContent.trim();
    if (!text || !("DecompressionStream" in window)) return null;
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  // Arms: a checkbox each. Hidden arms are hidden on screen, not in print.

  const hiddenArms = new Set();
  const listeners = [];
  const boxes = selectAll("#arms input");

  function showArms() {
    hiddenArms.clear();
    for (const box of boxes) if (!box.checked) hiddenArms.add(Number(box.value));
    for (const element of selectAll("[data-arm]")) element.toggleAttribute("data-off", hiddenArms.has(Number(element.dataset.arm)));
    select("#arms-shown").textContent = `${boxes.length - hiddenArms.size} of ${boxes.length} arms shown`;
    for (const listener of listeners) listener();
  }

  function setUpArms() {
    if (!boxes.length) return;
    for (const hidden of selectAll("#arms [hidden]")) hidden.hidden = false;
    select("#arms details").open = boxes.length < 9 && window.innerWidth > 640;
    for (const box of boxes) box.addEventListener("change", showArms);
    for (const button of selectAll("#arms button")) {
      button.addEventListener("click", () => {
        for (const box of boxes) box.checked = button.value === "all";
        showArms();
      });
    }
    // Some browsers keep the state of checkboxes over a reload.
    showArms();
  }

  // Values: a slider over each panel for pointer and arrow keys, with its values for screen readers.

  // Heights of the tick labels and of the gap to the tooltip, in SVG units.
  const TICKS = 24, GAP = 6;
  // Maximum number of lines in the tooltip: those nearest to the pointer, or the topmost.
  const MOST = 8;

  function setUpPanel(plot, title, panel) {
    const svg = select("svg", plot), [, top, , bottom] = panel.frame;
    const [, , wide, tall] = svg.getAttribute("viewBox").split(" ").map(Number);
    const marks = document.createElementNS(SVG, "g");
    const tip = make("div", { class: "tip", "aria-hidden": "true" });
    const probe = make("div", {
      class: "probe", role: "slider", tabindex: "0", "aria-valuemin": "1",
      "aria-label": `Values of ${title}${panel.title ? `, ${panel.title}` : ""}`,
    });
    let lines = [], positions = [], at = -1;
    svg.append(marks);
    plot.append(probe, tip);

    function updatePositions() {
      lines = panel.lines.filter((line) => !hiddenArms.has(line.arm));
      positions = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
      probe.setAttribute("aria-valuemax", String(Math.max(1, positions.length)));
      show(-1);
    }

    function findNearest(line, x) {
      let best = 0;
      line.x.forEach((other, index) => { if (Math.abs(other - x) < Math.abs(line.x[best] - x)) best = index; });
      const step = line.x.length > 1 ? (line.x.at(-1) - line.x[0]) / (line.x.length - 1) : 0;
      return Math.abs(line.x[best] - x) <= Math.max(1, step / 2) ? best : -1;
    }

    function draw(tag, attributes) {
      const element = document.createElementNS(SVG, tag);
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
      marks.append(element);
    }

    function show(index, y = 0) {
      at = index;
      marks.replaceChildren();
      tip.replaceChildren();
      tip.hidden = !(at in positions);
      if (tip.hidden) {
        probe.setAttribute("aria-valuenow", "1");
        probe.setAttribute("aria-valuetext", "use the arrow keys to read values");
        return;
      }
      const x = positions[at];
      const readable = lines.map((line) => [line, findNearest(line, x)]).filter(([, best]) => best >= 0);
      const near = [...readable].sort(([a, i], [b, j]) => Math.abs(a.y[i] - y) - Math.abs(b.y[j] - y)).slice(0, MOST);
      const [first, exact] = readable.find(([line, best]) => line.x[best] === x);
      const head = `${panel.title ? `${panel.title}, ` : ""}${first.at[exact]} ${panel.axis}`;
      draw("line", { x1: x, x2: x, y1: top, y2: bottom, class: "rule" });
      tip.append(make("b", {}, head));
      const spoken = [];
      for (const [line, best] of readable.filter((pair) => near.includes(pair))) {
        const colour = `--at: var(--c${line.arm})`;
        draw("circle", { cx: line.x[best], cy: line.y[best], r: 4, class: "dot", style: colour });
        const other = line.at[best] === first.at[exact] ? "" : ` at ${line.at[best]}`;
        const value = `${line.values[best]}${other}`;
        tip.append(make("span", { style: colour }, boxes.length > 1 ? `${line.name}: ` : "", make("i", {}, value)));
        spoken.push(boxes.length > 1 ? `${line.name} ${value}` : value);
      }
      if (near.length < readable.length) {
        spoken.push(`${readable.length - near.length} more`);
        tip.append(`${spoken.at(-1)}, farther away`);
      }
      probe.setAttribute("aria-valuenow", String(at + 1));
      probe.setAttribute("aria-valuetext", `${head}: ${spoken.join("; ")}`);
      // Below the panel, or above it at the end of the window.
      const scale = plot.clientWidth / wide, room = plot.clientWidth - tip.offsetWidth;
      tip.style.left = `${Math.max(0, Math.min(room, x * scale - tip.offsetWidth / 2))}px`;
      tip.style.top = `${(bottom + TICKS) * scale}px`;
      const ends = tip.getBoundingClientRect();
      if (ends.bottom > window.innerHeight && plot.getBoundingClientRect().top > ends.height) {
        tip.style.top = `${(top - GAP) * scale - ends.height}px`;
      }
    }

    function onPointer(event) {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) * wide) / box.width, y = ((event.clientY - box.top) * tall) / box.height;
      let best = -1;
      positions.forEach((other, index) => {
        if (best < 0 || Math.abs(other - x) < Math.abs(positions[best] - x)) best = index;
      });
      if (best !== at || lines.length > MOST) show(best, y);
    }

    probe.addEventListener("pointermove", onPointer);
    probe.addEventListener("pointerdown", onPointer);
    probe.addEventListener("pointerleave", () => show(-1));
    probe.addEventListener("blur", () => show(-1));
    probe.addEventListener("keydown", (event) => {
      const last = positions.length - 1, jump = Math.max(1, Math.round(positions.length / 10));
      const moves = {
        ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: Math.max(0, at - 1), ArrowDown: Math.max(0, at - 1),
        PageUp: at + jump, PageDown: Math.max(0, at - jump), Home: 0, End: last, Escape: -1,
      };
      if (!(event.key in moves) || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      show(Math.min(last, moves[event.key]));
    });
    listeners.push(updatePositions);
    updatePositions();
  }

  // Completions of all evaluations, one page at a time.

  const PAGE = 10;

  function setUpCompletions(data) {
    const form = select("#browse"), list = select("#results"), counter = select("#browse-count"), more = select("#browse-more");
    const { arms, sources, problems, rows } = data;
    const lower = rows.text.map((text, row) =>
      `${problems[rows.problem[row]][0]}\n${rows.answer[row] ?? ""}\n${text}`.toLowerCase());
    let matches = [], shown = 0;

    function fillSelect(name, first, values) {
      const counts = new Map();
      for (const value of values) {
        for (const option of new Set([value, name === "verdict" ? value.split(": ")[0] : value])) {
          counts.set(option, (counts.get(option) ?? 0) + 1);
        }
      }
      const names = [...counts.keys()].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
      const options = names.map((value) => make("option", { value }, `${value} (${counts.get(value).toLocaleString("en")})`));
      const box = form.elements[name];
      box.replaceChildren(make("option", { value: "" }, first), ...options);
      box.closest("label").hidden = names.length < 2;
    }

    const armOf = (row) => sources[rows.source[row]].arm === null ? "before training" : arms[sources[rows.source[row]].arm];
    const verdictOf = (row) => {
      const word = rows.right[row] ? "correct" : "wrong", reason = rows.reason[row];
      return ["correct", "wrong"].includes(reason) ? word : `${word}: ${reason}`;
    };
    // `wrong` matches any reason.
    const hasVerdict = (verdict, value) => verdict === value || verdict.startsWith(`${value}: `);
    const values = {
      verdict: rows.text.map((_, row) => verdictOf(row)),
      subgroup: rows.problem.map((problem) => problems[problem][1]),
      arm: rows.text.map((_, row) => armOf(row)),
      evaluation: rows.source.map((source) => sources[source].of),
    };
    fillSelect("verdict", "all", values.verdict);
    fillSelect("subgroup", "all", values.subgroup);
    fillSelect("arm", "all shown", values.arm);
    fillSelect("evaluation", "all", values.evaluation);

    function highlight(text, needle) {
      const parts = [], low = text.toLowerCase();
      let from = 0;
      // Lower case of another length would shift the positions.
      for (let at = needle && low.length === text.length ? low.indexOf(needle) : -1; at >= 0; at = low.indexOf(needle, from)) {
        parts.push(text.slice(from, at), make("mark", {}, text.slice(at, at + needle.length)));
        from = at + needle.length;
      }
      return [...parts, text.slice(from)];
    }

    function makeItem(row, needle) {
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
        rows.tokens[row] === null ? "" : `${rows.tokens[row]} tokens${rows.cut[row] ? ", truncated" : ""}`,
        rows.reward[row] === null ? "" : `reward ${Number(rows.reward[row].toPrecision(3))}`,
      ];
      const answer = rows.answer[row] === null ? ["no answer"] : ["answer ", make("bdi", {}, ...highlight(rows.answer[row], needle))];
      return make("li", {},
        make("p", { class: rows.right[row] ? "verdict right" : "verdict" }, make("b", {}, values.verdict[row]), ", ", ...answer),
        make("pre", { tabindex: "0", dir: "auto", "aria-label": "completion" }, ...highlight(rows.text[row], needle)),
        make("p", { class: "note" }, `${about.filter(Boolean).join(" · ")} `, same));
    }

    function showMore() {
      const needle = form.elements.search.value.trim().toLowerCase();
      list.append(...matches.slice(shown, shown + PAGE).map((row) => makeItem(row, needle)));
      shown = Math.min(matches.length, shown + PAGE);
      more.hidden = shown >= matches.length;
      const right = matches.reduce((sum, row) => sum + rows.right[row], 0);
      const share = matches.length ? `, ${((100 * right) / matches.length).toFixed(1)}% correct` : "";
      counter.textContent = `${matches.length.toLocaleString("en")} of ${rows.text.length.toLocaleString("en")} completions`
        + `${share}${matches.length > shown ? `; the first ${shown} are shown` : ""}`;
    }

    function search() {
      const needle = form.elements.search.value.trim().toLowerCase();
      const chosen = Object.keys(values).map((name) => [values[name], form.elements[name].value, name])
        .filter(([, value]) => value);
      const hidden = (row) => !form.elements.arm.value && hiddenArms.has(sources[rows.source[row]].arm);
      matches = [];
      for (let row = 0; row < lower.length; row += 1) {
        const fits = ([column, value, name]) => (name === "verdict" ? hasVerdict(column[row], value) : column[row] === value);
        if (chosen.every(fits) && !hidden(row) && lower[row].includes(needle)) matches.push(row);
      }
      shown = 0;
      list.replaceChildren();
      showMore();
    }

    let waiting;
    form.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(search, 120); });
    form.addEventListener("submit", (event) => { event.preventDefault(); search(); });
    form.addEventListener("reset", () => setTimeout(search));
    more.addEventListener("click", showMore);
    listeners.push(search);
    search();
    select("#explore").hidden = false;
  }

  async function start() {
    setUpArms();
    const charts = await unpack("data-charts");
    for (const [key, panels] of Object.entries(charts ?? {})) {
      const figure = select(`#figure-${key}`), title = select("h3", figure).textContent;
      selectAll(".plot", figure).forEach((plot, number) => setUpPanel(plot, title, panels[number]));
    }
    const completions = await unpack("data-completions");
    if (completions) setUpCompletions(completions);
    document.documentElement.dataset.ready = "yes";
  }
  start();
})();
