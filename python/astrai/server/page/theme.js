// Before the first paint: the colour scheme chosen earlier. Without a choice the system's is used.
"use strict";
const chosenTheme = localStorage.getItem("astrai.theme");
if (chosenTheme) document.documentElement.dataset.theme = chosenTheme;
