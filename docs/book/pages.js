// Two things that mdBook does not do: links to files beside docs/ lead to the repository, and drawings in
// mermaid are drawn where a network is there. Without one their source is shown.
const repository = document.querySelector('a[title="Git repository"]')?.href;
for (const link of document.querySelectorAll("main a[href^='..']")) {
  const root = new URL(path_to_root || ".", document.location).pathname;
  const path = new URL(link.getAttribute("href"), document.location).pathname;
  if (repository && !path.startsWith(root)) {
    const depth = link.getAttribute("href").replace(/^(\.\.\/)+/, "").replace(/\.html(?=#|$)/, ".md");
    link.href = `${repository}/blob/main/${depth}`;
  }
}
const drawings = document.querySelectorAll("code.language-mermaid");
if (drawings.length > 0) {
  import("https://cdn.jsdelivr.net/npm/mermaid@11/dist/mermaid.esm.min.mjs").then(({ default: mermaid }) => {
    for (const code of drawings) {
      const place = document.createElement("div");
      place.className = "mermaid";
      place.textContent = code.textContent;
      code.parentElement.replaceWith(place);
    }
    mermaid.initialize({ startOnLoad: false });
    mermaid.run();
  }).catch(() => {});
}
