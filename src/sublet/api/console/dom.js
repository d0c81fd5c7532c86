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

/** Put these in the place of all that is in there. */
export function fill(place, ...children) {
  place.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
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
