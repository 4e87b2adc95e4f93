// Elements from data. Text is always set as text: a name with markup in it is shown, not carried out.

function filled(element, properties, children) {
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(element.style, value);
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key === "value" || key === "checked" || key === "selected") element[key] = value;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== undefined && child !== null && child !== false) {
      element.append(child instanceof Node ? child : String(child));
    }
  }
  return element;
}

export function h(tag, properties, ...children) {
  return filled(document.createElement(tag), properties, children);
}

export function replace(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
}

/** A row of buttons of which one is pressed. */
export function segments(label, options, chosen, onchoose) {
  const buttons = options.map(({ value, text, disabled, title }) =>
    h("button", {
      type: "button", "aria-pressed": String(value === chosen), disabled, title,
      onclick: () => {
        for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.value === value));
        onchoose(value);
      },
      data: { value },
    }, text));
  return h("div", { class: "segments", role: "group", "aria-label": label }, buttons);
}

export function select(label, options, chosen, onchoose) {
  const control = h("select", { "aria-label": label, onchange: () => onchoose(control.value) },
    options.map(({ value, text }) => h("option", { value, selected: value === chosen }, text)));
  return h("label", { class: "field" }, h("span", {}, label), control);
}

/** A card with a title, an optional explanation and controls. */
export function card(title, { note, controls, wide, id } = {}, ...children) {
  return h("section", { class: wide ? "card wide" : "card", id },
    h("header", {}, h("h2", {}, title), controls),
    note ? h("p", { class: "note" }, note) : null,
    children);
}

export function empty(title, ...text) {
  return h("div", { class: "empty" }, h("h2", {}, title), text.map((line) => h("p", {}, line)));
}
