// Pieces of the page, built by hand: text is always text, and nothing that a job is called can become more than that.

/** An element: attributes, `on...` handlers, then children; a child that is no element is written as text. */
export function h(tag, facts = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(facts)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value") made.value = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

/** Put these in the place of all that is in there; who reads or stands somewhere in it goes on there. */
export function fill(place, ...children) {
  const active = place.contains(document.activeElement) && document.activeElement !== place ? document.activeElement : null;
  const stood = active && sign(active);
  const read = new Map([...place.querySelectorAll(".wide")].map((each) => [sign(each), each.scrollLeft]));
  place.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
  for (const each of place.querySelectorAll(".wide")) if (read.get(sign(each))) each.scrollLeft = read.get(sign(each));
  if (active && !active.isConnected) [...place.querySelectorAll(active.tagName)].find((each) => sign(each) === stood)?.focus({ preventScroll: true });
}

/** By what an element is known again after it was drawn anew: what it is, where it leads, in which row. */
function sign(element) {
  return JSON.stringify([element.tagName, element.id, element.getAttribute("href"), element.getAttribute("aria-label"), element.closest("tr")?.firstElementChild?.textContent]);
}

/** A curve as small as a word; what it ends at is written beside it. */
export function spark(values) {
  const [wide, high] = [60, 16];
  const made = h("canvas", { class: "spark", width: wide * devicePixelRatio, height: high * devicePixelRatio, "aria-hidden": "true" });
  const pen = made.getContext("2d");
  const least = Math.min(...values);
  const range = Math.max(...values) - least || 1;
  pen.scale(devicePixelRatio, devicePixelRatio);
  pen.strokeStyle = getComputedStyle(document.body).getPropertyValue("--mark");
  pen.lineWidth = 1.5;
  values.forEach((value, at) => pen.lineTo((wide * at) / (values.length - 1), high - 1 - ((high - 2) * (value - least)) / range));
  pen.stroke();
  return made;
}

/** Another text, if it is another: whoever reads the page aloud is not told the same again. */
export function say(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

/** A table with a caption; `columns` are [heading, class]. */
export function table(caption, columns, rows) {
  const head = columns.map(([text, kind]) => h("th", { scope: "col", class: kind }, text));
  return h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
}

/** A row of such a table. */
export function row(cells, facts = {}) {
  return h("tr", facts, cells.map((cell, at) => h(at ? "td" : "th", at ? {} : { scope: "row" }, cell)));
}

/** A list of words and what they are. */
export function facts(pairs) {
  return h("dl", { class: "facts" },
    pairs.map(([name, value, id]) => h("div", {}, h("dt", {}, name), h("dd", id ? { id } : {}, value))));
}
