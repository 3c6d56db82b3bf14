/* Nodes of the page. Styles are set by properties and classes alone, as the page's content security policy asks for. */

export const $ = id => document.getElementById(id);
export const el = (tag, props = {}, ...children) => { const e = Object.assign(document.createElement(tag), props); e.append(...children); return e; };
export const svg = (tag, attributes = {}, ...children) => {
  const e = document.createElementNS($("curve").namespaceURI, tag);
  for (const name in attributes) e.setAttribute(name, attributes[name]);
  e.append(...children);
  return e;
};
export const set = (node, text) => { if (node.textContent !== text) node.textContent = text; };
export const button = (text, onclick, props = {}) => Object.assign(el("button", { type: "button", textContent: text, ...props }), { onclick });

/* Says something at a place: what went well goes by itself, what is under way and what is wrong stays. */
export function tell(node, text, isBad = false) {
  clearTimeout(node.fading);
  node.className = isBad ? "said bad" : "said";
  set(node, text);
  if (!isBad && !text.endsWith("…")) node.fading = setTimeout(() => set(node, ""), 6000);
}

/* Shows a dialog and tells whether `go` was chosen. The browser puts the focus into it and afterwards back to where it was. */
export function confirmed(dialog, go) {
  return new Promise(answer => {
    dialog.returnValue = "";
    go.onclick = () => dialog.close("go");
    dialog.onclose = () => answer(dialog.returnValue === "go");
    dialog.showModal();
  });
}
/* Says what will happen, and asks for it. */
export function ask(title, sentences, action) {
  set($("asktitle"), title); set($("askgo"), action);
  $("asktext").replaceChildren(...sentences.map(sentence => el("p", { textContent: sentence })));
  return confirmed($("ask"), $("askgo"));
}

/* Rows are kept by key and only changed cells are written, so nothing flickers and focus stays. A cell is its class and its
   text, or its class and { stamp, nodes }: the nodes are made where the stamp has changed. */
export function rows(body, items, key, fill) {
  const old = new Map([...body.children].map(tr => [tr.dataset.key, tr]));
  let place = body.firstElementChild;
  for (const item of items) {
    const k = String(key(item));
    let tr = old.get(k);
    if (tr) old.delete(k); else tr = el("tr");
    tr.dataset.key = k;
    const cells = fill(item);
    while (tr.children.length < cells.length) tr.append(el("td"));
    cells.forEach(([kind, value], i) => {
      const td = tr.children[i];
      if (td.className !== kind) td.className = kind;
      const stamp = typeof value === "string" ? value : value.stamp;
      if (td.dataset.stamp === stamp) return;
      td.dataset.stamp = stamp;
      typeof value === "string" ? td.textContent = value : td.replaceChildren(...value.nodes());
    });
    if (tr !== place) body.insertBefore(tr, place); else place = place.nextElementSibling;
  }
  for (const tr of old.values()) tr.remove();
}
export const pill = text => ({ stamp: text, nodes: () => [el("span", { className: "pill " + text, textContent: text })] });
/* A text, and below it what is wrong. */
export const because = (text, why) => ({ stamp: `${text}/${why || ""}`, nodes: () => [text, ...(why ? [el("div", { className: "why", textContent: why })] : [])] });

/* Offers names in a select, behind its first option; the one that was chosen stays where it is still there. */
export function choices(place, names) {
  const known = [...place.options].slice(1).map(option => option.value);
  if (names.join() === known.join()) return;
  const chosen = place.value;
  place.replaceChildren(place.options[0], ...names.map(name => el("option", { value: name, textContent: name })));
  place.value = names.includes(chosen) ? chosen : "";
}

/* A table of names and figures. */
export function figures(list, entries) {
  if (list.children.length !== entries.length) list.replaceChildren(...entries.map(() => el("div", {}, el("dt"), el("dd"))));
  entries.forEach(([name, value], i) => { set(list.children[i].firstChild, name); set(list.children[i].lastChild, value); });
}

/* The bubble with what is below the pointer or has the focus. */
export function showTip(nodes, box) {
  const tip = $("tip");
  tip.replaceChildren(...nodes);
  tip.hidden = false;
  tip.style.left = Math.max(6, Math.min(innerWidth - tip.offsetWidth - 6, box.left + box.width / 2 - tip.offsetWidth / 2)) + "px";
  tip.style.top = (box.top > tip.offsetHeight + 12 ? box.top - tip.offsetHeight - 7 : box.bottom + 7) + "px";
}
export const hideTip = () => { $("tip").hidden = true; };

/* Gives a file to the browser, as if it had been downloaded. */
export function download(name, kind, content) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type: kind }));
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
