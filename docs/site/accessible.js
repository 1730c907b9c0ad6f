/* What the theme leaves out: a name for the search, and tables that scroll with the keyboard too. */
const complete = () => {
  for (const search of document.querySelectorAll(".md-search[role=dialog]")) search.ariaLabel = "Search"
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) table.tabIndex = 0
}
new MutationObserver(complete).observe(document.body, { childList: true, subtree: true })
complete()
