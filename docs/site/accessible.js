/* What the theme leaves out: a name for the search; tables, and formulas that are too wide, scroll with the keyboard too. */
const complete = () => {
  for (const search of document.querySelectorAll(".md-search[role=dialog]")) search.ariaLabel = "Search"
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) table.tabIndex = 0
  for (const math of document.querySelectorAll(".md-typeset math")) {
    math.setAttribute("tabindex", math.scrollWidth > math.clientWidth ? 0 : -1)
  }
}
addEventListener("resize", complete)
new MutationObserver(complete).observe(document.body, { childList: true, subtree: true })
complete()
