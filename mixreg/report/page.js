"use strict";
(() => {
  const all = (query, from = document) => [...from.querySelectorAll(query)];
  document.documentElement.classList.add("scripted");

  // Filter by verdict: what has one is shown if it is chosen, and a heading if anything below it is.
  const buttons = all("button[data-filter]");
  const choose = (chosen) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.filter === chosen));
    const kept = (kinds) => chosen === "all" || kinds.split(" ").includes(chosen);
    for (const part of all("[data-kind]")) part.hidden = !kept(part.dataset.kind);
    for (const part of all("[data-kinds]")) part.hidden = !kept(part.dataset.kinds);
  };
  for (const button of buttons) {
    button.addEventListener("click", () => {
      choose(button.getAttribute("aria-pressed") === "true" ? "all" : button.dataset.filter);
    });
  }

  // Sort the claims.
  const order = document.getElementById("order");
  const body = document.querySelector("table.claims tbody");
  if (order && body) {
    const rows = [...body.rows];
    const rank = buttons.map((button) => button.dataset.filter);
    const by = {
      paper: () => 0,
      verdict: (a, b) => rank.indexOf(a.dataset.kind) - rank.indexOf(b.dataset.kind),
      name: (a, b) => a.cells[0].textContent.localeCompare(b.cells[0].textContent),
    };
    order.addEventListener("change", () => body.append(...[...rows].sort(by[order.value])));
  }

  // A figure in large: it moves into the dialog and back.
  const dialog = document.getElementById("large");
  const sheet = dialog.querySelector(".sheet");
  let home = null;
  for (const card of all("figure .card")) {
    const open = () => {
      home = card;
      sheet.append(card.firstElementChild);
      sheet.classList.remove("closer");
      dialog.showModal();
    };
    card.addEventListener("click", open);
    card.parentElement.querySelector("button").addEventListener("click", open);
  }
  sheet.addEventListener("click", () => sheet.classList.toggle("closer"));
  dialog.addEventListener("close", () => home && home.prepend(sheet.firstElementChild));

  // The values of all runs, for those who cannot point: a tap shows what pointing does.
  const told = document.getElementById("told");
  document.addEventListener("click", (event) => {
    const cell = event.target.closest("td[title], .track[title]");
    told.textContent = cell ? cell.title : "";
    told.hidden = !cell;
  });

  // Where one is.
  const links = new Map(all("nav a").map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const link = links.get(entry.target.id);
      if (link && entry.isIntersecting) {
        for (const other of links.values()) other.removeAttribute("aria-current");
        link.setAttribute("aria-current", "true");
        const bar = link.closest("ul");
        bar.scrollLeft = link.offsetLeft - bar.clientWidth / 2;
      }
    }
  }, { rootMargin: "-20% 0px -75% 0px" });
  for (const section of all("main > section")) seen.observe(section);
})();
