export * from 'echarts/core';
import * as core from 'echarts/core';
import {LineChart, GraphChart} from 'echarts/charts';
import {GridComponent, TooltipComponent, LegendComponent, AriaComponent, DataZoomComponent} from 'echarts/components';
import {CanvasRenderer} from 'echarts/renderers';
core.use([LineChart, GraphChart, GridComponent, TooltipComponent, LegendComponent, AriaComponent, DataZoomComponent, CanvasRenderer]);
